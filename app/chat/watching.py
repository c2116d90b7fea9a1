"""Watches the engine's cache for everybody: what is warm for its owner, what changes for administrators.

    an event of the engine ──> summed for administrators
                          └──> a look at its sessions ──> the owners' boards (law 11: each their own)

One task hears and one looks, however many people watch; while nobody does, the engine is asked
nothing. Where the numbers of events do not follow each other something was missed (we were slow, or
the engine has started again), and administrators are told to look anew.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec

from app.chat.board import GAP_S, Board
from app.frames import CacheState, Warmth
from app.ids import ConversationId, UserId
from engine.api import CacheEvent, CacheSnapshot, Engine, RetentionClass
from engine.errors import EngineError
from engine.figures import BlockCounts, CacheChange, EvictionReason, SessionView
from engine.terms import Tier

LOG = logging.getLogger(__name__)

LOOK_S_PER_SESSION = 0.001
"""So that looks cost the engine little, however many sessions there are: a look takes it a few
microseconds for each."""
RETRY_S = 1.0
"""While the engine is away."""


class SummedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one kind, summed. Whose they were is left out."""

    kind: CacheChange
    retention: RetentionClass | None
    reason: EvictionReason | None
    tier: Tier | None
    events: int
    tokens: int


class CacheChanges(msgspec.Struct, frozen=True, kw_only=True, tag="cache.changes"):
    """What happened in the cache since the last word, and the blocks after it.

    `missed`: there was more; what is shown is to be read anew.
    """

    sequence_number: int
    blocks: BlockCounts
    changes: tuple[SummedChange, ...]
    missed: bool


_Kind = tuple[CacheChange, RetentionClass | None, EvictionReason | None, Tier | None]


class Tally:
    """What one administrator has not been told yet; as large as there are kinds of changes."""

    def __init__(self) -> None:
        self._events: Counter[_Kind] = Counter()
        self._tokens: Counter[_Kind] = Counter()
        self._last: CacheEvent | None = None
        self._missed = False
        self._woken = asyncio.Event()
        self._told_s = -GAP_S

    def add(self, event: CacheEvent, *, missed: bool) -> None:
        kind = event.kind, event.retention, event.reason, event.tier
        self._events[kind] += 1
        self._tokens[kind] += event.tokens
        self._last, self._missed = event, self._missed or missed
        self._woken.set()

    async def take(self) -> CacheChanges:
        """All that was added, once there is any and the last word is old enough."""
        await self._woken.wait()
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._told_s + GAP_S - now())
        self._woken.clear()
        self._told_s = now()
        assert self._last is not None
        told = CacheChanges(
            sequence_number=self._last.sequence_number,
            blocks=self._last.blocks,
            changes=tuple(
                SummedChange(
                    kind=kind,
                    retention=retention,
                    reason=reason,
                    tier=tier,
                    events=events,
                    tokens=self._tokens[kind, retention, reason, tier],
                )
                for (kind, retention, reason, tier), events in self._events.items()
            ),
            missed=self._missed,
        )
        self._events.clear()
        self._tokens.clear()
        self._missed = False
        return told


class Watching:
    """One per server."""

    def __init__(self, engine: Engine, board: Board) -> None:
        self._engine = engine
        self._board = board
        self._tallies: set[Tally] = set()
        self._changed = board.stirred
        self._wanted = asyncio.Event()
        self._last = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter and leave it in one task."""
        chores = [asyncio.create_task(self._hear()), asyncio.create_task(self._look_after())]
        try:
            yield
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.wait(chores)

    @contextmanager
    def tally(self) -> Iterator[Tally]:
        """What changes in the cache from now on, until the block ends."""
        tally = Tally()
        self._tallies.add(tally)
        self._wanted.set()
        try:
            yield tally
        finally:
            self._tallies.discard(tally)

    @property
    def _is_wanted(self) -> bool:
        return bool(self._tallies or self._board.users)

    async def _hear(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                self._last = (await self._engine.snapshot(tree=False)).sequence_number
                self._changed.set()
                async with contextlib.aclosing(self._events()) as events:
                    async for event in events:
                        self._take(event)
                        if not self._is_wanted:
                            break
            except EngineError as error:
                LOG.info("the cache cannot be watched: %s", error)
                await asyncio.sleep(RETRY_S)
            except Exception:  # whoever watches is told again when this works again
                LOG.exception("the cache is not watched")
                await asyncio.sleep(RETRY_S)
            if not self._is_wanted:
                self._wanted.clear()

    async def _events(self) -> AsyncGenerator[CacheEvent, None]:
        async for event in self._engine.watch(self._last):
            yield event

    def _take(self, event: CacheEvent) -> None:
        missed = event.sequence_number != self._last + 1
        self._last = event.sequence_number
        self._changed.set()
        for tally in self._tallies:
            tally.add(event, missed=missed)

    async def _look_after(self) -> None:
        """What changed is looked at, and a look is paid for by waiting."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            sessions = 0
            if self._board.users:
                self._wanted.set()
                try:
                    sessions = self._look(await self._engine.snapshot(tree=False))
                except EngineError:
                    pass  # it is heard of again when the engine is back
                except Exception:  # one look's fault must not end the others
                    LOG.exception("what is warm could not be told")
            await asyncio.sleep(max(GAP_S, sessions * LOOK_S_PER_SESSION))

    def _look(self, snapshot: CacheSnapshot) -> int:
        """Post what is warm of those who look; returns how many sessions there are in all."""
        users = self._board.users
        found: dict[UserId, set[ConversationId]] = {user_id: set() for user_id in users}
        for view in snapshot.sessions:
            user_id = UserId(view.owner_id)
            if user_id in users:
                warmth = warmth_of(view)
                found[user_id].add(warmth.conversation_id)
                self._board.post(user_id, warmth)
        for user_id, there in found.items():
            for gone in self._board.warm(user_id) - there:
                self._board.post(user_id, Warmth(conversation_id=gone, state=CacheState.COLD))
        return len(snapshot.sessions)


def warmth_of(view: SessionView) -> Warmth:
    """What its owner is told of a session: nothing that others have a part in."""
    return Warmth(
        conversation_id=ConversationId(view.session_id),
        state=state_of(view),
        device_tokens=view.cached_tokens,
        host_tokens=view.host_tokens,
        disk_tokens=view.disk_tokens,
    )


def state_of(view: SessionView) -> CacheState:
    if not max(view.cached_tokens, view.host_tokens, view.disk_tokens):
        return CacheState.COLD
    return CacheState.WARM if view.tier is Tier.DEVICE else CacheState.PARKED
