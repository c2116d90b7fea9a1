"""Conversations out and in: `/api/export` and `/api/import`. What stands in a file: `chat.archive`."""

import enum
from typing import Any

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Stream

from app.chat.archive import Archive
from app.chat.conversations import Changes
from app.chat.export import Export, markdown
from app.chat.imports import Imported, Imports
from app.chat.supervisor import Supervisor
from app.ids import ConversationId
from app.people.accounts import Principal
from app.routes.cut import WAITS
from app.routes.published.told import JSON, told

LARGEST_IMPORT = 32 * 2**20


class Form(enum.StrEnum):
    JSON = "json"
    MARKDOWN = "markdown"


@get("/export", opt=told(gives={JSON: Archive}))
async def export_all(
    principal: NamedDependency[Principal], export: NamedDependency[Export]
) -> Stream:
    """An archive of all conversations in the list, whole trees, as one file."""
    return Stream(
        export.all(principal.user_id),
        media_type="application/json",
        headers=_attached("keepwarm.json"),
    )


@get(
    "/conversations/{conversation_id:str}/export",
    opt=told(gives={JSON: Archive, "text/markdown": str}),
)
async def export_conversation(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    export: NamedDependency[Export],
    form: FromQuery[Form] = Form.JSON,
) -> Response[bytes]:
    """`json`: an archive with the whole tree. `markdown`: the branch that is shown, to read."""
    known_id = ConversationId(conversation_id)
    if form is Form.JSON:
        file = await export.one(principal.user_id, known_id)
        kind, tail = "application/json", "json"
    else:
        file = markdown(await export.read(principal.user_id, known_id)).encode()
        kind, tail = "text/markdown", "md"
    return Response(file, media_type=kind, headers=_attached(f"{known_id}.{tail}"))


@post(
    "/import",
    request_max_body_size=LARGEST_IMPORT,
    opt=WAITS | told(takes={JSON: Archive | tuple[dict[str, Any], ...], "application/zip": None}),
)
async def import_conversations(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    imports: NamedDependency[Imports],
    supervisor: NamedDependency[Supervisor],
) -> Imported:
    """The body is the file: an archive of ours, or ChatGPT's export (`conversations.json` or ZIP)."""

    async def keep(conversation_id: ConversationId) -> None:
        await supervisor.change_conversation(principal, conversation_id, Changes(kept_warm=True))

    return await imports.take(principal.user_id, await request.body(), keep)


def _attached(name: str) -> dict[str, str]:
    """Saved and never shown: what is in it was written by anybody."""
    return {"content-disposition": f'attachment; filename="{name}"'}


handlers = [export_all, export_conversation, import_conversations]
