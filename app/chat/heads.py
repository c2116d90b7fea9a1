"""What the library puts at the head of a prompt: chosen, permitted, compiled once (laws 3, 11, 19).

Permission is asked first, at every turn, and only then does a head exist that could be matched.
Besides, a text's KV lies in the scope of those who may read it:

    everybody    operator              all prompts may share it
    listed       operator:<id>         matched only by prompts that this module made for a reader
    an owner's   user:<id>             as everything else that the owner wrote

The KV of a token depends on all before it, so a scope only ever narrows along a head: a public
document behind a listed persona lies in the persona's scope, and whatever follows an owner's own text
is the owner's. So somebody who guesses a text that they may not read hits nothing: what they send as
instructions, messages or items of their own lies in their own scope, whatever it says.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat.library import Item, Text
from app.chat.readers import kind_of, not_found, readable, scopes
from app.db.base import Database
from app.db.models import LibraryItem, LibraryVersion
from app.db.types import ItemKind, VersionRef
from app.errors import PromptTooLong
from app.ids import DocumentId, ItemId, PersonaId, UserId
from engine.api import (
    OPERATOR_SCOPE,
    CacheSource,
    Engine,
    Message,
    ModelCard,
    Rendered,
    RenderRequest,
    Role,
    Scope,
    Seam,
    Stability,
)
from engine.errors import EngineError

CACHED_TEXTS = 128

SOURCES = {ItemKind.PERSONA: CacheSource.PERSONA, ItemKind.DOCUMENT: CacheSource.DOCUMENT}


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A version as messages, and as the ids that they add to a head.

    Without ids where the template rewrites what was said: prompts are rendered whole there.
    """

    kind: ItemKind
    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    opening_end: int
    model_fingerprint: str
    template_fingerprint: str

    def fits(self, card: ModelCard) -> bool:
        return (self.model_fingerprint, self.template_fingerprint) == (
            card.model_fingerprint,
            card.template_fingerprint,
        )


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one version puts into a head, and who may match it."""

    ref: VersionRef
    compiled: Compiled
    scope: Scope

    @property
    def source(self) -> CacheSource:
        return SOURCES[self.compiled.kind]


class Heads:
    """Makes the parts of heads; remembers compiled texts, which are the same for all."""

    def __init__(self, db: Database, engine: Engine) -> None:
        self._db = db
        self._engine = engine
        self._known: OrderedDict[VersionRef, Compiled] = OrderedDict()
        self._compiling = asyncio.Lock()

    async def choose(
        self, user_id: UserId, persona_id: PersonaId, document_ids: Iterable[DocumentId] = ()
    ) -> tuple[VersionRef, ...]:
        """What a new conversation under this persona reads. Raises `NotFound`."""
        async with self._db.read() as session:
            return await newest(session, readable(user_id), persona_id, document_ids)

    async def for_reader(
        self,
        card: ModelCard,
        user_id: UserId,
        refs: Sequence[VersionRef],
        *,
        was_sent: bool,
        readable: Mapping[ItemId, Scope] | None = None,
    ) -> tuple[Part, ...]:
        """`was_sent`: a conversation has this head already, and keeps the ids that it has.

        `readable`: as `readers.scopes` told a moment ago. Raises `NotFound` where the user may not, or
        may no longer, read one of them.
        """
        anew = card.template.reads_clock and not was_sent
        found = await self._scopes(user_id, refs) if readable is None else readable
        return await self._parts(card, found, refs, anew=anew)

    async def published(self, card: ModelCard, refs: Sequence[VersionRef]) -> tuple[Part, ...]:
        """For nobody in particular. Raises `NotFound` where one of them is an owner's own."""
        found = await self._scopes(None, refs)
        return await self._parts(card, found, refs, anew=card.template.reads_clock)

    async def check_fits(self, kind: ItemKind, says: Text) -> None:
        """Raises `PromptTooLong` where nobody could say a word behind this text, and `EngineError`."""
        card = await self._engine.info()
        needed = len((await self._render(kind, _messages(kind, says))).token_ids) + 1
        limit = min(card.context_tokens, card.pool_blocks * card.block_tokens)
        if needed > limit:
            raise PromptTooLong(
                f"The text has {needed - 1} tokens; this model has room for {limit} in all.",
                needed_tokens=needed,
                limit_tokens=limit,
                field="instructions" if kind is ItemKind.PERSONA else "text",
            )

    async def counted(self, item: Item) -> Item:
        """The item with the tokens of its newest version, as far as the engine tells them."""
        ref = VersionRef(item.summary.id, item.summary.version)
        try:
            compiled = await self._compiled(await self._engine.info(), ref, anew=False)
        except EngineError:
            return item
        tokens = len(compiled.token_ids) or None
        return replace(item, summary=replace(item.summary, tokens=tokens))

    async def _scopes(
        self, user_id: UserId | None, refs: Sequence[VersionRef]
    ) -> Mapping[ItemId, Scope]:
        ids = [ref.id for ref in refs]
        return await self._db.look(lambda session: scopes(session, user_id, ids))

    async def _parts(
        self,
        card: ModelCard,
        found: Mapping[ItemId, Scope],
        refs: Sequence[VersionRef],
        *,
        anew: bool,
    ) -> tuple[Part, ...]:
        """`anew`: the template's opening, which the first of them has, may tell of another day."""
        if anew:
            self._known.pop(refs[0], None)
        parts = []
        scope = OPERATOR_SCOPE
        for ref in refs:
            if ref.id not in found:
                raise not_found(ItemKind.PERSONA if ref is refs[0] else ItemKind.DOCUMENT)
            scope = _narrowed(scope, found[ref.id])
            parts.append(
                Part(ref=ref, compiled=await self._compiled(card, ref, anew=anew), scope=scope)
            )
        return tuple(parts)

    async def _compiled(self, card: ModelCard, ref: VersionRef, *, anew: bool) -> Compiled:
        if not self._knows(card, ref):
            async with self._compiling:
                # Whoever waited finds what the first one compiled.
                if not self._knows(card, ref):
                    self._known[ref] = await self._compile(card, ref, anew=anew)
                    if len(self._known) > CACHED_TEXTS:
                        self._known.popitem(last=False)
                return self._known[ref]
        self._known.move_to_end(ref)
        return self._known[ref]

    def _knows(self, card: ModelCard, ref: VersionRef) -> bool:
        known = self._known.get(ref)
        return known is not None and known.fits(card)

    async def _compile(self, card: ModelCard, ref: VersionRef, *, anew: bool) -> Compiled:
        """As it is stored, or rendered and stored where it was compiled for another model."""
        kind = kind_of(ref.id)
        async with self._db.read() as session:
            row = await session.get(LibraryVersion, (ref.id, ref.number))
        if row is None:  # its owner was quicker
            raise not_found(kind)
        stored = Compiled(
            kind=kind,
            messages=_messages(kind, row),
            token_ids=row.token_ids or (),
            opening_end=row.opening_end or 0,
            model_fingerprint=row.model_fingerprint or "",
            template_fingerprint=row.template_fingerprint or "",
        )
        starts = kind is ItemKind.PERSONA
        if stored.fits(card) and not (starts and anew):
            return stored
        made = replace(
            stored,
            token_ids=(),
            opening_end=0,
            model_fingerprint=card.model_fingerprint,
            template_fingerprint=card.template_fingerprint,
        )
        if card.template.stability is Stability.UNSTABLE:
            return made
        rendered = await self._render(kind, made.messages)
        made = replace(
            made,
            token_ids=rendered.token_ids[: rendered.ends[-1]],
            opening_end=rendered.opening_end,
        )
        await self._store(ref, made)
        return made

    async def _render(self, kind: ItemKind, messages: tuple[Message, ...]) -> Rendered:
        """A document continues a message that is closed, whatever that says."""
        seam = Seam.START if kind is ItemKind.PERSONA else Seam.CLOSED
        request = RenderRequest(messages=messages, seam=seam, opens_reply=False)
        return await self._engine.render(request)

    async def _store(self, ref: VersionRef, made: Compiled) -> None:
        async with self._db.jot() as session:
            await session.execute(
                update(LibraryVersion)
                .where(LibraryVersion.item_id == ref.id, LibraryVersion.number == ref.number)
                .values(
                    token_ids=made.token_ids,
                    opening_end=made.opening_end,
                    model_fingerprint=made.model_fingerprint,
                    template_fingerprint=made.template_fingerprint,
                )
            )


# ---------------------------------------------------------------- which versions


async def newest(
    session: AsyncSession,
    allowed: ColumnElement[bool],
    persona_id: PersonaId,
    document_ids: Iterable[DocumentId] = (),
) -> tuple[VersionRef, ...]:
    """The persona and, in a fixed order, its documents and these, each as it is offered now.

    What comes with the persona is its author's choice, archived or not. Raises `NotFound`.
    """
    picked = set(document_ids)
    persona = await session.scalar(
        select(LibraryItem).where(
            LibraryItem.id == persona_id, LibraryItem.kind == ItemKind.PERSONA, allowed
        )
    )
    if persona is None or persona.archived_at is not None:
        raise not_found(ItemKind.PERSONA)
    says = await session.get(LibraryVersion, (persona.id, persona.newest))
    if says is None:  # its owner was quicker
        raise not_found(ItemKind.PERSONA)
    wanted = sorted({*says.document_ids, *picked})
    found = await session.scalars(
        select(LibraryItem).where(
            LibraryItem.id.in_(wanted),
            LibraryItem.kind == ItemKind.DOCUMENT,
            allowed,
            or_(LibraryItem.archived_at.is_(None), LibraryItem.id.in_(says.document_ids)),
        )
    )
    documents = {item.id: item.newest for item in found}
    if len(documents) < len(wanted):
        raise not_found(ItemKind.DOCUMENT)
    return (
        VersionRef(persona.id, persona.newest),
        *(VersionRef(document_id, documents[document_id]) for document_id in wanted),
    )


def _narrowed(scope: Scope, own: Scope) -> Scope:
    """Who may match a text of the scope `own` behind one of this scope."""
    return scope if own == OPERATOR_SCOPE or scope.startswith("user:") else own


def _messages(kind: ItemKind, says: Text | LibraryVersion) -> tuple[Message, ...]:
    """A document is told and acknowledged: every template takes a user and an assistant in turns."""
    if kind is ItemKind.PERSONA:
        return (Message(role=Role.SYSTEM, text=says.text), *says.examples)
    return (
        Message(role=Role.USER, text=f"Document: {says.name}\n\n{says.text}"),
        Message(role=Role.ASSISTANT, text="I have read it."),
    )
