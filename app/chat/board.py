"""How a user's conversations stand now: of each the latest word, for whoever shows them.

Unlike a notice (`hub`) a state need not be told when another follows it: only the last one counts.
So a glance never holds more than one of each kind for a conversation. The board knows no socket and
asks nobody; what stands on it is posted by those who know (`watching`, `presence`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.frames import CacheState, ConversationWarmth, PresenceChanged, Shown, Warmth
from app.ids import ConversationId, UserId

GAP_S = 0.5
"""States are told no closer than this."""

State = Warmth | Shown
_Key = tuple[type[State], ConversationId]
_States = dict[_Key, State]


class Glance:
    """What one page has not been told yet."""

    def __init__(self, states: _States) -> None:
        self._untold: _States = dict(states)
        self._woken = asyncio.Event()
        self._told_s = -GAP_S
        if states:
            self._woken.set()

    def see(self, state: State) -> None:
        self._untold[type(state), state.conversation_id] = state
        self._woken.set()

    async def frames(self) -> list[ConversationWarmth | PresenceChanged]:
        """All that is new, once there is any and the last word is old enough."""
        await self._woken.wait()
        await asyncio.sleep(self._told_s + GAP_S - _now())
        self._woken.clear()
        self._told_s = _now()
        untold, self._untold = self._untold, {}
        warmths = tuple(one for one in untold.values() if isinstance(one, Warmth))
        shown = tuple(one for one in untold.values() if isinstance(one, Shown))
        told: list[ConversationWarmth | PresenceChanged] = []
        if warmths:
            told.append(ConversationWarmth(conversations=warmths))
        if shown:
            told.append(PresenceChanged(conversations=shown))
        return told


class Board:
    """One per server; used from the event loop's thread only."""

    def __init__(self) -> None:
        self._states: dict[UserId, _States] = {}
        self._glances: dict[UserId, set[Glance]] = {}
        self.stirred = asyncio.Event()
        """Set when somebody begins to look; whoever waits for it clears it."""

    @property
    def users(self) -> set[UserId]:
        """Whose conversations somebody looks at."""
        return set(self._glances)

    @contextmanager
    def glance(self, user_id: UserId) -> Iterator[Glance]:
        """Everything as it stands, and then what changes, until the block ends."""
        glance = Glance(self._states.get(user_id, {}))
        self._glances.setdefault(user_id, set()).add(glance)
        self.stirred.set()
        try:
            yield glance
        finally:
            self._glances[user_id].discard(glance)
            if not self._glances[user_id]:
                del self._glances[user_id]
                self._forget_warmth(user_id)

    def post(self, user_id: UserId, state: State) -> None:
        """What stands there now is told to all who look; what is as it was, to nobody."""
        states = self._states.setdefault(user_id, {})
        key = type(state), state.conversation_id
        if states.get(key, _nothing(state)) != state:
            if state == _nothing(state):
                states.pop(key, None)
            else:
                states[key] = state
            for glance in self._glances.get(user_id, ()):
                glance.see(state)
        if not states:
            del self._states[user_id]

    def warm(self, user_id: UserId) -> set[ConversationId]:
        """What was last told to be warm or parked of a user's."""
        states = self._states.get(user_id, {})
        return {conversation_id for kind, conversation_id in states if kind is Warmth}

    def _forget_warmth(self, user_id: UserId) -> None:
        """Nobody looks after it while nobody looks at it."""
        kept = {k: v for k, v in self._states.pop(user_id, {}).items() if k[0] is not Warmth}
        if kept:
            self._states[user_id] = kept


def _now() -> float:
    return asyncio.get_running_loop().time()


def _nothing(state: State) -> State:
    if isinstance(state, Warmth):
        return Warmth(conversation_id=state.conversation_id, state=CacheState.COLD)
    return Shown(conversation_id=state.conversation_id)
