"""Old versions of personas and documents, for those who may edit them: `/api/.../versions`."""

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, PathParameter

from app.chat.library import Text
from app.chat.versions import Version, Versions
from app.chat.warming import Warming
from app.db.types import ItemKind, VersionRef
from app.ids import ItemId
from app.people.accounts import Principal

Number = Annotated[int, PathParameter(ge=1, le=2**31 - 1)]


class ListedVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: Version
    is_warm: bool
    """Kept computed for all who may read it; what one keeps for oneself never is."""


@get("/personas/{persona_id:str}/versions")
async def list_persona_versions(
    persona_id: FromPath[str],
    principal: NamedDependency[Principal],
    versions: NamedDependency[Versions],
    warming: NamedDependency[Warming],
) -> tuple[ListedVersion, ...]:
    known_id = ItemId(persona_id)
    listed = await versions.list(principal.user_id, ItemKind.PERSONA, known_id)
    return _listed(known_id, listed, warming)


@get("/documents/{document_id:str}/versions")
async def list_document_versions(
    document_id: FromPath[str],
    principal: NamedDependency[Principal],
    versions: NamedDependency[Versions],
    warming: NamedDependency[Warming],
) -> tuple[ListedVersion, ...]:
    known_id = ItemId(document_id)
    listed = await versions.list(principal.user_id, ItemKind.DOCUMENT, known_id)
    return _listed(known_id, listed, warming)


@get("/personas/{persona_id:str}/versions/{number:int}")
async def read_persona_version(
    persona_id: FromPath[str],
    number: Number,
    principal: NamedDependency[Principal],
    versions: NamedDependency[Versions],
) -> Text:
    return await versions.read(principal.user_id, ItemKind.PERSONA, ItemId(persona_id), number)


@get("/documents/{document_id:str}/versions/{number:int}")
async def read_document_version(
    document_id: FromPath[str],
    number: Number,
    principal: NamedDependency[Principal],
    versions: NamedDependency[Versions],
) -> Text:
    return await versions.read(principal.user_id, ItemKind.DOCUMENT, ItemId(document_id), number)


def _listed(
    item_id: ItemId, listed: tuple[Version, ...], warming: Warming
) -> tuple[ListedVersion, ...]:
    warm = warming.versions
    return tuple(
        ListedVersion(version=one, is_warm=VersionRef(item_id, one.number) in warm)
        for one in listed
    )


handlers = [
    list_persona_versions,
    list_document_versions,
    read_persona_version,
    read_document_version,
]
