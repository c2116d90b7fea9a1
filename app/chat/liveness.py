"""Liveness: what pages tell of who is there, as wishes to the engine.

    open, typing   LIVE, renewed for as long as a socket says so
    hidden         RECENT, in the same way
    gone           RECENT for a while, in which a page may come back; then idle, and parked
    kept warm      KEPT whenever it is less alive than that, until its owner says otherwise

Several pages may show one conversation: the most alive of them counts. A conversation that comes to
life is brought back from lower tiers, and so it is when somebody begins to type. A wish that fails is
repeated with the next renewal; nobody waits for one.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from app.chat.board import Board
from app.frames import PresenceState, Shown
from app.ids import ConversationId, UserId
from engine.api import Engine, Hold, OwnerId, RetentionClass, Subject, SubjectKind, Warm, Wish
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

RENEW_S = 20.0
TTL_S = 3 * RENEW_S
"""Longer than a renewal may be late."""
RETURN_S = 60.0
"""A page that was lost is waited for so long."""

_ALIVE = (PresenceState.OPEN, PresenceState.TYPING)
_ORDER = (PresenceState.HIDDEN, PresenceState.OPEN, PresenceState.TYPING)


def wishes(before: PresenceState, state: PresenceState, *, kept: bool = False) -> Iterator[Wish]:
    """What is wished of the engine when a conversation was shown so before, and now is so."""
    if state in _ALIVE:
        typing = state is PresenceState.TYPING
        yield Hold(retention=RetentionClass.LIVE, ttl_s=TTL_S, imminent=typing)
        if before not in _ALIVE or (typing and before is not state):
            yield Warm()
    elif kept:
        yield Hold(retention=RetentionClass.KEPT)
    elif state is PresenceState.HIDDEN:
        yield Hold(retention=RetentionClass.RECENT, ttl_s=TTL_S)
    elif before is not PresenceState.CLOSED:
        yield Hold(retention=RetentionClass.RECENT, ttl_s=RETURN_S)


class Liveness:
    """One per server: who shows what, and what the engine was told of it.

    How many pages show a conversation stands on the `board`, for its owner.
    """

    def __init__(self, engine: Engine) -> None:
        self.board = Board()
        self._engine = engine
        self._seen: dict[Subject, dict[Presence, PresenceState]] = {}
        self._told: dict[Subject, PresenceState] = {}
        self._changed: dict[Subject, None] = {}
        self._kept: set[Subject] = set()
        self._boot_id: str | None = None
        self._woken = asyncio.Event()

    @contextlib.contextmanager
    def page(self, user_id: UserId) -> Iterator["Presence"]:
        """What one socket shows, until the block ends."""
        presence = Presence(self, user_id)
        try:
            yield presence
        finally:
            presence.leave_all()

    async def keep(self) -> None:
        """Tell the engine what changed, at once, and all of it in every while. Never returns."""
        loop = asyncio.get_running_loop()
        renewal_s = loop.time() + RENEW_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renewal_s):
                    await self._woken.wait()
            self._woken.clear()
            changed, self._changed = self._changed, {}
            if loop.time() >= renewal_s:
                renewal_s = loop.time() + RENEW_S
                changed |= dict.fromkeys(self._seen)
                changed |= dict.fromkeys(await self._kept_anew())
            async with asyncio.TaskGroup() as wishes:
                for subject in changed:
                    wishes.create_task(self._wish(subject))

    def see(self, subject: Subject, presence: "Presence", state: PresenceState) -> None:
        """A page shows the subject so, or (closed) shows it no more."""
        if state is PresenceState.CLOSED:
            pages = self._seen.get(subject, {})
            pages.pop(presence, None)
            if not pages:
                self._seen.pop(subject, None)
        else:
            self._seen.setdefault(subject, {})[presence] = state
        self.board.post(presence.user_id, shown(subject, self._seen.get(subject, {}).values()))
        self._changed[subject] = None
        self._woken.set()

    def keep_warm(self, subject: Subject, *, kept: bool) -> None:
        """Its owner wants its KV to stay, or no longer does."""
        if kept is (subject in self._kept):
            return
        if kept:
            self._kept.add(subject)
        else:
            self._kept.discard(subject)
            # As if its last page had just been left.
            self._told.setdefault(subject, PresenceState.HIDDEN)
        self._changed[subject] = None
        self._woken.set()

    def keeps(self, subject: Subject) -> bool:
        """Whether its owner wants it to stay."""
        return subject in self._kept

    def renew(self, subject: Subject) -> None:
        """The engine let go of it: what is wished for it is to be said again."""
        self._told.pop(subject, None)
        self._changed[subject] = None
        self._woken.set()

    async def _kept_anew(self) -> set[Subject]:
        """A wish to keep stands for as long as the engine lives: what another one must hear."""
        try:
            boot_id = (await self._engine.info()).boot_id
        except EngineError:
            return set()
        is_new, self._boot_id = boot_id != self._boot_id, boot_id
        return self._kept if is_new else set()

    def forget(self, subject: Subject) -> None:
        """It is deleted: nothing more is wished for it."""
        self._kept.discard(subject)
        for known in (self._seen, self._told, self._changed):
            known.pop(subject, None)

    def forget_user(self, user_id: UserId) -> None:
        """Their account is deleted: nothing more is wished for what was theirs."""
        for subject in {*self._seen, *self._told, *self._changed, *self._kept}:
            if subject.owner_id == OwnerId(user_id):
                self.forget(subject)

    async def _wish(self, subject: Subject) -> None:
        pages = self._seen.get(subject, {})
        state = max(pages.values(), key=_ORDER.index, default=PresenceState.CLOSED)
        before = self._told.get(subject, PresenceState.CLOSED)
        if state is PresenceState.CLOSED:
            self._told.pop(subject, None)
        else:
            self._told[subject] = state
        try:
            for wish in wishes(before, state, kept=subject in self._kept):
                await self._engine.lease(subject, wish)
        except EngineError:
            pass  # said again with the next renewal
        except Exception:  # one wish's fault must not end the others
            LOG.exception("a wish for %s failed", subject.subject_id)


class Presence:
    """What one socket shows: only conversations that it may see, which the caller checked."""

    def __init__(self, liveness: Liveness, user_id: UserId) -> None:
        self.user_id = user_id
        self._liveness = liveness
        self._shown: dict[ConversationId, PresenceState] = {}

    def watch(self, conversation_id: ConversationId) -> None:
        """It is open, unless the page said otherwise before."""
        if conversation_id not in self._shown:
            self.see(conversation_id, PresenceState.OPEN)

    def see(self, conversation_id: ConversationId, state: PresenceState) -> None:
        if state is PresenceState.CLOSED:
            if self._shown.pop(conversation_id, None) is None:
                return
        elif self._shown.get(conversation_id) is state:
            return
        else:
            self._shown[conversation_id] = state
        self._liveness.see(session_of(self.user_id, conversation_id), self, state)

    def leave_all(self) -> None:
        for conversation_id in list(self._shown):
            self.see(conversation_id, PresenceState.CLOSED)


def shown(subject: Subject, states: Iterable[PresenceState]) -> Shown:
    counts = Counter(states)
    return Shown(
        conversation_id=ConversationId(subject.subject_id),
        open=sum(counts[state] for state in _ALIVE),
        typing=counts[PresenceState.TYPING],
        hidden=counts[PresenceState.HIDDEN],
    )


def session_of(user_id: UserId, conversation_id: ConversationId) -> Subject:
    """A conversation as the engine knows it."""
    return Subject(kind=SubjectKind.SESSION, subject_id=conversation_id, owner_id=OwnerId(user_id))
