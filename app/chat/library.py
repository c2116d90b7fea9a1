"""The library: personas and documents in versions, and who may read them.

A persona is a system prompt with few-shot examples and documents; a document is a text to ask about.
Both are stored ways to instruct, and stand at the head of a prompt, so that their KV is computed once
for all who may read them. A version never changes: a new one leaves the old one to the conversations
that have it. The operator's are published by administrators, for everybody or for the people and groups listed;
whoever has an account may keep some of their own, which nobody else reads.

Every query asks for what its user may read or edit (`readers`): what is not theirs is not found.
"""

import asyncio

import msgspec
from sqlalchemy import ColumnElement, Integer, Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from app.chat.readers import (
    editable,
    hold,
    hold_readers,
    is_admin,
    list_readers,
    not_found,
    readable,
)
from app.db.base import Database
from app.db.models import LibraryGroupReader, LibraryItem, LibraryReader, LibraryVersion, User
from app.db.types import AuditAct, ItemKind, Visibility, text_bytes, utc_now
from app.errors import Conflict, Forbidden, InvalidRequest
from app.ids import DocumentId, GroupId, ItemId, PersonaId, UserId, new_document_id, new_persona_id
from app.people.audit import note
from app.people.usage import Usage
from engine.api import Message, Role

OWN_ITEMS = 200
"""How many of each kind one account may have, archived ones included."""


class Persona(msgspec.Struct, frozen=True, kw_only=True):
    """One that comes with the program."""

    id: PersonaId
    name: str
    instructions: str

    @property
    def messages(self) -> tuple[Message, ...]:
        """What stands at the head of every prompt under this persona."""
        return (Message(role=Role.SYSTEM, text=self.instructions),)


DEFAULT_PERSONA = Persona(
    id=PersonaId(ItemId("persona_default")),
    name="Assistant",
    instructions=(
        "You are a helpful assistant. Answer plainly and to the point: give the answer first, then"
        " the reason if it helps. Say so when you do not know. Use short paragraphs, and Markdown"
        " only where a list, a table or code reads better that way."
    ),
)
"""Published from the first start, so that new conversations share a prefix."""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """What one version says. `text`: a persona's instructions, a document's text."""

    name: str
    text: str
    examples: tuple[Message, ...] = ()
    """Few-shots, user and assistant in turns."""
    document_ids: tuple[DocumentId, ...] = ()
    """Documents that come with a persona."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who may read an item. Of a listed one: `readers` are addresses, and members of the groups."""

    visibility: Visibility
    readers: tuple[str, ...] = ()
    group_ids: tuple[GroupId, ...] = ()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it stands in a list; `version` is its newest."""

    id: ItemId
    name: str
    visibility: Visibility
    version: int
    is_archived: bool
    is_editable: bool
    """By whoever asked."""
    tokens: int | None
    """What it says, in tokens; None until it was first read by a model."""
    document_ids: tuple[DocumentId, ...]
    """Documents that come with a persona."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item at its newest version. Who may read it is told to those who may edit it."""

    summary: Summary
    says: Text
    readers: tuple[str, ...]
    group_ids: tuple[GroupId, ...]


class Library:
    """Personas and documents for one user at a time. `changed` is set by whatever changes one."""

    def __init__(self, db: Database, usage: Usage) -> None:
        self._db = db
        self._usage = usage
        self.changed = asyncio.Event()

    async def ensure_default(self) -> None:
        """Publish the program's own persona, anew where a release says another text.

        It is a row like any other, so conversations stay on the text that they have. Where an
        administrator published a version of it, that one stays.
        """
        says = Text(name=DEFAULT_PERSONA.name, text=DEFAULT_PERSONA.instructions)
        async with self._db.begin() as session:
            item = await session.get(LibraryItem, DEFAULT_PERSONA.id)
            if item is None:
                item = _new_item(DEFAULT_PERSONA.id, ItemKind.PERSONA, None, Visibility.EVERYBODY)
                session.add(item)
                await session.flush()
            else:
                last = await session.get_one(LibraryVersion, (item.id, item.newest))
                if not last.built_in or _said(last) == says:
                    return
                item.newest += 1
            _add_version(session, item, says, built_in=True)
        self.changed.set()

    async def list(self, user_id: UserId, kind: ItemKind) -> tuple[Summary, ...]:
        """What the user may read, the oldest first; archived ones for those who may edit them."""
        edits = editable(user_id)
        query = (
            _newest()
            .where(LibraryItem.kind == kind, readable(user_id))
            .where(or_(LibraryItem.archived_at.is_(None), edits))
            .add_columns(edits)
            .options(*(defer(text, raiseload=True) for text in _TEXTS))
            .order_by(LibraryItem.created_at, LibraryItem.id)
        )
        async with self._db.read() as session:
            found = await session.execute(query)
            return tuple(
                _summary(item, last, tokens, edits=own) for item, last, tokens, own in found
            )

    async def read(self, user_id: UserId, kind: ItemKind, item_id: ItemId) -> Item:
        """Raises `NotFound`."""
        async with self._db.read() as session:
            return await _item(session, user_id, kind, item_id)

    async def create(self, user_id: UserId, kind: ItemKind, says: Text, access: Access) -> Item:
        """For oneself, or published for others.

        Raises `InvalidRequest`, `NotFound`, `Conflict`, `QuotaExceeded`, and `Forbidden` for who may
        not publish.
        """
        own = access.visibility is Visibility.OWNER
        async with self._db.begin() as session:
            await hold_readers(session, user_id, access.readers, access.group_ids)
            await _check_documents(session, user_id, says)
            if own:
                await session.run_sync(self._usage.store, user_id, bytes_of(says))
                await _check_room(session, user_id, kind)  # one at a time, by the meter's lock
            elif not await session.scalar(select(is_admin(user_id))):
                raise Forbidden("Only an administrator publishes for others.", field="visibility")
            item_id: ItemId = new_persona_id() if kind is ItemKind.PERSONA else new_document_id()
            item = _new_item(item_id, kind, user_id if own else None, access.visibility)
            session.add(item)
            await session.flush()
            _add_version(session, item, says)
            await list_readers(session, item, access.readers, access.group_ids)
            await session.flush()
            made = await _item(session, user_id, kind, item_id)
            _note(session, AuditAct.LIBRARY_PUBLISHED, item, version=item.newest)
        self.changed.set()
        return made

    async def add_version(
        self, user_id: UserId, kind: ItemKind, item_id: ItemId, says: Text
    ) -> Item:
        """What new conversations take from now on. Raises `NotFound`."""
        async with self._db.begin() as session:
            await _check_documents(session, user_id, says)
            item = await _edited(session, user_id, kind, item_id)
            if item.owner_id is not None:
                await session.run_sync(self._usage.store, item.owner_id, bytes_of(says))
            item.newest += 1
            _add_version(session, item, says)
            await session.flush()
            made = await _item(session, user_id, kind, item_id)
            _note(session, AuditAct.LIBRARY_PUBLISHED, item, version=item.newest)
        self.changed.set()
        return made

    async def set_access(
        self, user_id: UserId, kind: ItemKind, item_id: ItemId, access: Access
    ) -> Item:
        """Who may read it from now on. Raises `NotFound`, `Conflict` and `InvalidRequest`."""
        async with self._db.begin() as session:
            await hold_readers(session, user_id, access.readers, access.group_ids)
            item = await _edited(session, user_id, kind, item_id)
            own = access.visibility is Visibility.OWNER
            if own is not (item.owner_id is not None):
                raise InvalidRequest(
                    "What is the operator's stays so, and what is one's own too.",
                    field="visibility",
                )
            if item.id == DEFAULT_PERSONA.id and access.visibility is not Visibility.EVERYBODY:
                raise Conflict("The default persona is everybody's.", field="visibility")
            item.visibility = access.visibility
            await list_readers(session, item, access.readers, access.group_ids)
            await session.flush()
            made = await _item(session, user_id, kind, item_id)
            _note(session, AuditAct.LIBRARY_ACCESS, item, visibility=item.visibility)
        self.changed.set()
        return made

    async def archive(
        self, user_id: UserId, kind: ItemKind, item_id: ItemId, *, archived: bool
    ) -> Item:
        """Offer it to no new conversation, or again. Raises `NotFound` and `Conflict`."""
        async with self._db.begin() as session:
            item = await _edited(session, user_id, kind, item_id)
            if item.id == DEFAULT_PERSONA.id and archived:
                raise Conflict("The default persona cannot be archived.", field="archived")
            item.archived_at = (item.archived_at or utc_now()) if archived else None
            _note(session, AuditAct.LIBRARY_ARCHIVED, item, archived=archived)
            await session.flush()
            made = await _item(session, user_id, kind, item_id)
        self.changed.set()
        return made


# ---------------------------------------------------------------- rows


def _note(session: AsyncSession, act: AuditAct, item: LibraryItem, **details: object) -> None:
    """What is one's own is nobody else's business."""
    if item.owner_id is None:
        note(session, act, item.id, **details)


_PACKED = func.length(LibraryVersion.token_ids, type_=Integer)
TOKENS: ColumnElement[int | None] = func.nullif(_PACKED // 4, 0)
"""How many tokens a version was compiled to, without reading them: each is stored as four bytes."""
_TEXTS = LibraryVersion.text, LibraryVersion.examples, LibraryVersion.token_ids
"""What a list does not read: it may be a million characters."""


def _newest() -> Select[LibraryItem, LibraryVersion, int | None]:
    return select(LibraryItem, LibraryVersion, TOKENS).join(
        LibraryVersion,
        (LibraryVersion.item_id == LibraryItem.id) & (LibraryVersion.number == LibraryItem.newest),
    )


async def _item(session: AsyncSession, user_id: UserId, kind: ItemKind, item_id: ItemId) -> Item:
    query = (
        _newest()
        .where(LibraryItem.id == item_id, LibraryItem.kind == kind, readable(user_id))
        .add_columns(editable(user_id))
    )
    found = (await session.execute(query)).one_or_none()
    if found is None:
        raise not_found(kind)
    item, last, tokens, edits = found
    readers = select(User.email).join(LibraryReader, LibraryReader.user_id == User.id)
    listed = readers.where(LibraryReader.item_id == item_id).order_by(User.email)
    groups = select(LibraryGroupReader.group_id).where(LibraryGroupReader.item_id == item_id)
    return Item(
        summary=_summary(item, last, tokens, edits=edits),
        says=_said(last),
        readers=tuple(await session.scalars(listed)) if edits else (),
        group_ids=tuple(sorted(await session.scalars(groups))) if edits else (),
    )


async def _edited(
    session: AsyncSession, user_id: UserId, kind: ItemKind, item_id: ItemId
) -> LibraryItem:
    query = select(LibraryItem).where(
        LibraryItem.id == item_id, LibraryItem.kind == kind, editable(user_id)
    )
    item = await session.scalar(query.with_for_update())
    if item is None:
        raise not_found(kind)
    return item


def _summary(
    item: LibraryItem, last: LibraryVersion, tokens: int | None, *, edits: bool
) -> Summary:
    return Summary(
        id=item.id,
        name=last.name,
        visibility=item.visibility,
        version=item.newest,
        is_archived=item.archived_at is not None,
        is_editable=edits,
        tokens=tokens,
        document_ids=last.document_ids,
    )


def _said(version: LibraryVersion) -> Text:
    return Text(
        name=version.name,
        text=version.text,
        examples=version.examples,
        document_ids=version.document_ids,
    )


def bytes_of(says: Text | LibraryVersion) -> int:
    """What it counts for in a quota."""
    return text_bytes(says.text) + sum(text_bytes(one.text) for one in says.examples)


def _new_item(
    item_id: ItemId, kind: ItemKind, owner_id: UserId | None, visibility: Visibility
) -> LibraryItem:
    return LibraryItem(
        id=item_id,
        kind=kind,
        owner_id=owner_id,
        visibility=visibility,
        newest=1,
        created_at=utc_now(),
        archived_at=None,
    )


def _add_version(
    session: AsyncSession, item: LibraryItem, says: Text, *, built_in: bool = False
) -> None:
    """The item's newest."""
    session.add(
        LibraryVersion(
            item_id=item.id,
            number=item.newest,
            name=says.name,
            text=says.text,
            examples=says.examples,
            document_ids=says.document_ids,
            built_in=built_in,
            created_at=utc_now(),
            token_ids=None,
            opening_end=None,
            model_fingerprint=None,
            template_fingerprint=None,
        )
    )


async def _check_documents(session: AsyncSession, user_id: UserId, says: Text) -> None:
    """Whoever writes a persona may read what comes with it; that stays until this is stored."""
    query = select(LibraryItem.id).where(
        LibraryItem.id.in_(says.document_ids),
        LibraryItem.kind == ItemKind.DOCUMENT,
        readable(user_id),
    )
    if set(says.document_ids) - set(await session.scalars(query)):
        raise not_found(ItemKind.DOCUMENT)
    await session.run_sync(hold, user_id, says.document_ids)


async def _check_room(session: AsyncSession, user_id: UserId, kind: ItemKind) -> None:
    query = select(func.count()).where(LibraryItem.owner_id == user_id, LibraryItem.kind == kind)
    if (await session.scalar(query) or 0) >= OWN_ITEMS:
        raise Conflict(f"An account has at most {OWN_ITEMS} of these.", code="too_many_items")
