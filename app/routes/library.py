"""Personas and documents for the page: `/api`. Who may read or edit one is asked in `chat.library`."""

from typing import Annotated

import msgspec
from litestar import delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec.structs import asdict

from app.chat.disposal import Disposal
from app.chat.heads import Heads
from app.chat.library import Access, Item, Library, Summary
from app.chat.library import Text as Says
from app.chat.warming import Warming
from app.db.types import ItemKind, VersionRef, Visibility
from app.errors import InvalidRequest
from app.ids import DocumentId, GroupId, ItemId
from app.people.accounts import Principal
from app.routes.published.told import told
from engine.api import Message, Role

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Instructions = Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]
LongText = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000_000)]
Emails = Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)]
GroupIds = Annotated[tuple[GroupId, ...], msgspec.Meta(max_length=100)]
Picked = Annotated[tuple[DocumentId, ...], msgspec.Meta(max_length=32)]


class Example(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, and the answer that the model is to take after."""

    user: Instructions
    assistant: Instructions


Examples = Annotated[tuple[Example, ...], msgspec.Meta(max_length=64)]


class PersonaText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one version of a persona says."""

    name: Name
    instructions: Instructions
    examples: Examples = ()
    document_ids: Picked = ()
    """Documents that come with it."""

    def says(self) -> Says:
        turns = ((Role.USER, one.user, Role.ASSISTANT, one.assistant) for one in self.examples)
        examples = [
            message
            for asks, question, answers, answer in turns
            for message in (Message(role=asks, text=question), Message(role=answers, text=answer))
        ]
        return Says(
            name=self.name,
            text=self.instructions,
            examples=tuple(examples),
            document_ids=tuple(dict.fromkeys(self.document_ids)),
        )


class DocumentText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one version of a document says."""

    title: Name
    text: LongText

    def says(self) -> Says:
        return Says(name=self.title, text=self.text)


class NewPersona(PersonaText, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`owner`: for oneself. An administrator publishes for `everybody`, or for those listed."""

    visibility: Visibility = Visibility.OWNER
    readers: Emails = ()
    group_ids: GroupIds = ()


class NewDocument(DocumentText, frozen=True, kw_only=True, forbid_unknown_fields=True):
    visibility: Visibility = Visibility.OWNER
    readers: Emails = ()
    group_ids: GroupIds = ()


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing at a time: who may read it, or whether new conversations may take it."""

    visibility: Visibility | None = None
    readers: Emails = ()
    group_ids: GroupIds = ()
    archived: bool | None = None


class Listed(Summary, frozen=True, kw_only=True):
    is_warm: bool
    """Kept computed for all who may read it; what one keeps for oneself never is."""


class PersonaView(msgspec.Struct, frozen=True, kw_only=True):
    """A persona at its newest version."""

    summary: Summary
    instructions: str
    examples: tuple[Example, ...]
    document_ids: tuple[DocumentId, ...]
    readers: tuple[str, ...]
    group_ids: tuple[GroupId, ...]


class DocumentView(msgspec.Struct, frozen=True, kw_only=True):
    """A document at its newest version."""

    summary: Summary
    text: str
    readers: tuple[str, ...]
    group_ids: tuple[GroupId, ...]


@get("/personas")
async def list_personas(
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
    warming: NamedDependency[Warming],
) -> tuple[Listed, ...]:
    return _listed(await library.list(principal.user_id, ItemKind.PERSONA), warming)


@post("/personas", opt=told(fails=(404, 409)))
async def create_persona(
    data: JSONBody[NewPersona],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
    heads: NamedDependency[Heads],
) -> PersonaView:
    await heads.check_fits(ItemKind.PERSONA, data.says())
    access = _access(data.visibility, data)
    made = await library.create(principal.user_id, ItemKind.PERSONA, data.says(), access)
    return _persona(await heads.counted(made))


@get("/personas/{persona_id:str}")
async def read_persona(
    persona_id: FromPath[str],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
) -> PersonaView:
    return _persona(await library.read(principal.user_id, ItemKind.PERSONA, ItemId(persona_id)))


@post("/personas/{persona_id:str}/versions")
async def add_persona_version(
    persona_id: FromPath[str],
    data: JSONBody[PersonaText],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
    *,
    heads: NamedDependency[Heads],
) -> PersonaView:
    await heads.check_fits(ItemKind.PERSONA, data.says())
    known_id = ItemId(persona_id)
    made = await library.add_version(principal.user_id, ItemKind.PERSONA, known_id, data.says())
    return _persona(await heads.counted(made))


@patch("/personas/{persona_id:str}", opt=told(fails=(409,)))
async def change_persona(
    persona_id: FromPath[str],
    data: JSONBody[Change],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
) -> PersonaView:
    return _persona(await _change(library, principal, (ItemKind.PERSONA, persona_id), data))


@delete("/personas/{persona_id:str}", opt=told(fails=(409,)))
async def delete_persona(
    persona_id: FromPath[str],
    principal: NamedDependency[Principal],
    disposal: NamedDependency[Disposal],
) -> None:
    """One of one's own that no conversation reads."""
    await disposal.delete(principal.user_id, ItemKind.PERSONA, ItemId(persona_id))


@get("/documents")
async def list_documents(
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
    warming: NamedDependency[Warming],
) -> tuple[Listed, ...]:
    return _listed(await library.list(principal.user_id, ItemKind.DOCUMENT), warming)


@post("/documents", opt=told(fails=(404, 409)))
async def create_document(
    data: JSONBody[NewDocument],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
    heads: NamedDependency[Heads],
) -> DocumentView:
    await heads.check_fits(ItemKind.DOCUMENT, data.says())
    access = _access(data.visibility, data)
    made = await library.create(principal.user_id, ItemKind.DOCUMENT, data.says(), access)
    return _document(await heads.counted(made))


@get("/documents/{document_id:str}")
async def read_document(
    document_id: FromPath[str],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
) -> DocumentView:
    return _document(await library.read(principal.user_id, ItemKind.DOCUMENT, ItemId(document_id)))


@post("/documents/{document_id:str}/versions")
async def add_document_version(
    document_id: FromPath[str],
    data: JSONBody[DocumentText],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
    *,
    heads: NamedDependency[Heads],
) -> DocumentView:
    await heads.check_fits(ItemKind.DOCUMENT, data.says())
    known_id = ItemId(document_id)
    made = await library.add_version(principal.user_id, ItemKind.DOCUMENT, known_id, data.says())
    return _document(await heads.counted(made))


@patch("/documents/{document_id:str}", opt=told(fails=(409,)))
async def change_document(
    document_id: FromPath[str],
    data: JSONBody[Change],
    principal: NamedDependency[Principal],
    library: NamedDependency[Library],
) -> DocumentView:
    return _document(await _change(library, principal, (ItemKind.DOCUMENT, document_id), data))


def _listed(items: tuple[Summary, ...], warming: Warming) -> tuple[Listed, ...]:
    warm = warming.versions
    return tuple(
        Listed(**asdict(one), is_warm=VersionRef(one.id, one.version) in warm) for one in items
    )


@delete("/documents/{document_id:str}", opt=told(fails=(409,)))
async def delete_document(
    document_id: FromPath[str],
    principal: NamedDependency[Principal],
    disposal: NamedDependency[Disposal],
) -> None:
    """One of one's own that no conversation and no persona reads."""
    await disposal.delete(principal.user_id, ItemKind.DOCUMENT, ItemId(document_id))


async def _change(
    library: Library, principal: Principal, item: tuple[ItemKind, str], change: Change
) -> Item:
    kind, item_id = item[0], ItemId(item[1])
    if (change.visibility is None) is (change.archived is None):
        raise InvalidRequest("Send `visibility` with who may read it, or `archived`.")
    if change.visibility is not None:
        access = _access(change.visibility, change)
        return await library.set_access(principal.user_id, kind, item_id, access)
    archived = bool(change.archived)
    return await library.archive(principal.user_id, kind, item_id, archived=archived)


def _access(visibility: Visibility, asked: NewPersona | NewDocument | Change) -> Access:
    return Access(visibility=visibility, readers=asked.readers, group_ids=asked.group_ids)


def _persona(item: Item) -> PersonaView:
    turns = zip(item.says.examples[::2], item.says.examples[1::2], strict=True)
    return PersonaView(
        summary=item.summary,
        instructions=item.says.text,
        examples=tuple(Example(user=asks.text, assistant=says.text) for asks, says in turns),
        document_ids=item.says.document_ids,
        readers=item.readers,
        group_ids=item.group_ids,
    )


def _document(item: Item) -> DocumentView:
    return DocumentView(
        summary=item.summary,
        text=item.says.text,
        readers=item.readers,
        group_ids=item.group_ids,
    )


handlers = [
    list_personas,
    create_persona,
    read_persona,
    add_persona_version,
    change_persona,
    delete_persona,
    list_documents,
    create_document,
    read_document,
    add_document_version,
    change_document,
    delete_document,
]
