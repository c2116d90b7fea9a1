"""Keeps what the library has published warm: computed before it is asked for, and leased.

    wanted   each published persona with its documents, each document behind the default persona,
             and what conversations of the last day are under, superseded and archived ones included;
             then each published document behind each published persona, as far as there is room
    warm     computed by a background job that answers nothing, then leased as SHARED
    over     superseded or archived, and nobody's any more: the lease falls to IDLE

It looks again when the library changes, when the engine was started anew (then nothing is warm), and
once an hour, to compute again what gave way meanwhile; after a minute where the engine had no room
for a job. One job at a time, behind all turns; whoever comes before it is done computes what is
missing, and readiness waits for none of this. What an account has of its own is not warmed: it is
kept as that account's conversations are.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from itertools import islice, product

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import heads
from app.chat.headed import Headed, library_head
from app.chat.library import DEFAULT_PERSONA, Library
from app.chat.prompt import Prompts
from app.db.base import Database
from app.db.models import Conversation, LibraryItem
from app.db.types import ItemKind, VersionRef, utc_now
from app.errors import NotFound
from app.ids import DocumentId, PersonaId
from engine.api import (
    Engine,
    Finished,
    Forget,
    Hold,
    Job,
    JobClass,
    JobId,
    Limits,
    ModelCard,
    OwnerId,
    RetentionClass,
    SessionId,
    Subject,
    SubjectKind,
)
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

OPERATOR = OwnerId("operator")
IN_USE = timedelta(days=1)
"""A conversation that was used since then may go on any moment."""
MOST_WARMED = 64
"""Heads at most; what is published comes first, then what most people use."""
PAIRS_SHARE = 4
"""Pairs that nobody uses yet take one part in so many of the pool at most."""
LOOK_S = 2.0
REVIEW_S = 3600.0
RETRY_S = 60.0

Refs = tuple[VersionRef, ...]


class Warm(msgspec.Struct, frozen=True, kw_only=True):
    """A head, and what it is leased as."""

    subject: Subject
    headed: Headed


class Warming:
    """One per server. `warm` names the heads that are or are to be, by their versions."""

    def __init__(self, db: Database, engine: Engine, library: Library, texts: heads.Heads) -> None:
        self.warm: dict[Refs, Warm] = {}
        self._settled: set[Refs] = set()
        self._db = db
        self._engine = engine
        self._library = library
        self._heads = texts
        self._prompts = Prompts(engine)
        self.boot_id = ""

    @property
    def versions(self) -> set[VersionRef]:
        """Those that a warm head is made of."""
        return {ref for refs in self.warm for ref in refs}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter and leave it in one task."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait((keeping,))

    async def _keep(self) -> None:
        while True:
            self._library.changed.clear()
            try:
                await self.refresh()
                await self._next_look()
            except EngineError:
                await asyncio.sleep(LOOK_S)
            except Exception:  # a full disk now need not be one at the next look
                LOG.exception("personas and documents could not be warmed")
                await asyncio.sleep(LOOK_S)

    async def _next_look(self) -> None:
        due_s = REVIEW_S if self._settled >= self.warm.keys() else RETRY_S
        for _ in range(int(due_s / LOOK_S)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._library.changed.wait()
            changed = self._library.changed.is_set()
            if changed or (await self._engine.info()).boot_id != self.boot_id:
                return
        # What is in the cache still costs a token.
        self._settled.clear()

    async def refresh(self) -> None:
        """Warm what is wanted and is not, let go what was and is not any more."""
        card = await self._engine.info()
        if card.boot_id != self.boot_id:
            self.warm.clear()
            self._settled.clear()
            self.boot_id = card.boot_id
        async with self._db.read() as session:
            wanted, pairs = await _wanted(session), await _pairs(session)
        wanted |= dict.fromkeys(await self._fitting(card, [p for p in pairs if p not in wanted]))
        if len(wanted) > MOST_WARMED:
            LOG.warning("%s heads are not warmed, %s are", len(wanted) - MOST_WARMED, MOST_WARMED)
            wanted = dict.fromkeys(list(wanted)[:MOST_WARMED])
        for refs in self.warm.keys() - wanted:
            await self._engine.lease(self.warm[refs].subject, Hold(retention=RetentionClass.IDLE))
            del self.warm[refs]
            self._settled.discard(refs)
        for refs in wanted:
            with contextlib.suppress(NotFound):  # an owner's own, behind a published persona
                await self._warm_up(card, refs)

    async def _fitting(self, card: ModelCard, pairs: list[Refs]) -> list[Refs]:
        """The first of those that nobody uses yet, so many as have room."""
        room = card.pool_blocks * card.block_tokens // PAIRS_SHARE
        fitting: list[Refs] = []
        for refs in pairs:
            try:
                parts = await self._heads.published(card, refs)
            except NotFound:  # an owner's own, behind a published persona
                continue
            room -= len((await self._prompts.head(card, library_head(parts))).head.token_ids)
            if room < 0:
                break
            fitting.append(refs)
        return fitting

    async def _warm_up(self, card: ModelCard, refs: Refs) -> None:
        text = library_head(await self._heads.published(card, refs))
        headed = await self._prompts.head(card, text)
        known = self.warm.get(refs)
        if known is not None and known.headed != headed:
            # Others may read it now than could, or a template tells another day.
            del self.warm[refs]
            self._settled.discard(refs)
            await self._engine.lease(known.subject, Forget())
        if refs in self._settled:
            return
        kind = SubjectKind.DOCUMENT if len(refs) > 1 else SubjectKind.PERSONA
        warm = Warm(
            subject=Subject(kind=kind, subject_id=text.key, owner_id=OPERATOR), headed=headed
        )
        await self._engine.lease(warm.subject, Hold(retention=RetentionClass.SHARED))
        refusal = (await self._compute(warm)).refusal
        self.warm[refs] = warm
        if refusal is not None:
            LOG.warning("%s is not warm: %s", text.key, refusal.message)
        if refusal is None or refusal.retry_after_s is None:
            self._settled.add(refs)

    async def _compute(self, warm: Warm) -> Finished:
        job = Job(
            job_id=JobId(f"warm_{secrets.token_hex(8)}"),
            owner_id=OPERATOR,
            session_id=SessionId(warm.subject.subject_id),
            token_ids=warm.headed.head.token_ids,
            zones=tuple(zone for zone in warm.headed.zones if zone.end),
            limits=Limits(max_output_tokens=0),
            job_class=JobClass.BACKGROUND,
        )
        finished: Finished | None = None
        async for event in self._engine.generate(job):
            finished = event if isinstance(event, Finished) else finished
        assert finished is not None
        return finished


async def _wanted(session: AsyncSession) -> dict[Refs, None]:
    """In the order in which they are warmed."""
    wanted: dict[Refs, None] = {}
    for item in await _published(session):
        persona_id, picked = DEFAULT_PERSONA.id, [DocumentId(item.id)]
        if item.kind is ItemKind.PERSONA:
            persona_id, picked = PersonaId(item.id), []
        with contextlib.suppress(NotFound):
            wanted[await _newest(session, persona_id, picked)] = None
    used = await session.execute(
        select(Conversation.persona_id, Conversation.persona_version, Conversation.documents)
        .where(Conversation.updated_at > utc_now() - IN_USE)
        .group_by(Conversation.persona_id, Conversation.persona_version, Conversation.documents)
        .order_by(func.count(Conversation.user_id.distinct()).desc())
        .limit(MOST_WARMED)
    )
    for under_id, number, documents in used:
        if under_id is not None and number is not None:
            wanted[(VersionRef(under_id, number), *documents)] = None
    return wanted


async def _pairs(session: AsyncSession) -> list[Refs]:
    """Each published document behind each published persona, newest versions, oldest items first."""
    published = await _published(session)
    personas = [PersonaId(item.id) for item in published if item.kind is ItemKind.PERSONA]
    documents = [DocumentId(item.id) for item in published if item.kind is ItemKind.DOCUMENT]
    pairs: list[Refs] = []
    for persona_id, document_id in islice(product(personas, documents), MOST_WARMED):
        with contextlib.suppress(NotFound):
            pairs.append(await _newest(session, persona_id, [document_id]))
    return pairs


async def _published(session: AsyncSession) -> Sequence[LibraryItem]:
    """The operator's, personas first, oldest first."""
    items = await session.scalars(
        select(LibraryItem)
        .where(LibraryItem.owner_id.is_(None), LibraryItem.archived_at.is_(None))
        .order_by(LibraryItem.kind.desc(), LibraryItem.created_at, LibraryItem.id)
    )
    return items.all()


async def _newest(
    session: AsyncSession, persona_id: PersonaId, document_ids: list[DocumentId]
) -> Refs:
    allowed = LibraryItem.owner_id.is_(None)
    return await heads.newest(session, allowed, persona_id, document_ids)
