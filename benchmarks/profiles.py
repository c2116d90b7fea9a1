"""Synthetic workloads: seeded conversations in the shape of what is known of real ones.

chat-small   short turns with a shared system prompt (ShareGPT, LMSYS-Chat and WildChat means)
chat-long    long prompts, few turns (percentiles of the Mooncake conversation trace)
agent        many turns at short gaps that add a lot, some with a child (vLLM's AgentX figures)

The chats also say what their sockets would: open, typing, hidden, closed. How often a tab is hidden
or left open is assumed here; nobody has published it. A few sockets break off without a word.
"""

import math
import random
from array import array
from collections.abc import Iterator
from itertools import count

import msgspec

from app.frames import PresenceState
from benchmarks.workloads import Event, Signal, Turn, Workload

LENGTH_S = 3600.0
TYPING_S = 0.8
"""Seconds a token: four characters at five a second."""
TYPED_TOKENS = 60
"""What is longer is pasted: nobody types three hundred words into a chat."""
READING_S = 0.2
"""Seconds a token of the reply: about 230 words a minute."""
AWAY_S = 15.0
"""Who neither reads nor types for longer is not at the page."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens; (median, spread of the logarithm) where they vary."""

    unit_tokens: int
    sessions_per_s: float
    shared: int
    opening: tuple[float, float]
    message: tuple[float, float]
    reply: tuple[float, float]
    gap_s: tuple[float, float]
    goes_on: tuple[float, ...]
    """Chance of another turn after the first, the second, ...; the last one holds from there on."""
    edits: float = 0.05
    regenerations: float = 0.15
    children: float = 0.0
    sockets: bool = True
    hides: float = 0.8
    """Chance that the tab of a user who is away is hidden; else it stays open on the screen."""
    closes: float = 0.5
    """Chance that who is away for more than ten minutes closed the page, and opens it again."""
    forgets: float = 0.25
    """Chance that a tab is left open, hidden, after the last turn."""
    breaks: float = 0.02
    """Chance that a socket breaks after a turn, to come back within seconds."""


PROFILES = {
    "chat-small": Profile(
        unit_tokens=16,
        sessions_per_s=0.6,
        shared=1000,
        opening=(120.0, 0.8),
        message=(120.0, 0.8),
        reply=(300.0, 0.6),
        gap_s=(120.0, 1.0),
        goes_on=(0.714,),
    ),
    "chat-long": Profile(
        unit_tokens=512,
        sessions_per_s=1.5,
        shared=1000,
        opening=(6500.0, 1.3),
        message=(600.0, 1.0),
        reply=(350.0, 0.7),
        gap_s=(148.0, 1.0),
        goes_on=(0.30, 0.43, 0.56, 0.62, 0.70, 0.78),
    ),
    "agent": Profile(
        unit_tokens=512,
        sessions_per_s=0.02,
        shared=8000,
        opening=(4000.0, 0.5),
        message=(2500.0, 0.5),
        reply=(444.0, 0.5),
        gap_s=(6.0, 0.9),
        goes_on=(0.977,),
        edits=0.0,
        regenerations=0.0,
        children=0.44,
        sockets=False,
    ),
}


def generate(name: str, seed: int = 1, length_s: float = LENGTH_S) -> Workload:
    """An hour of a profile; its second half is scored. The same seed gives the same events."""
    profile = PROFILES[name]
    chance = random.Random(f"{name} {seed}")  # noqa: S311
    units = count(1)
    shared = [next(units) for _ in range(-(-profile.shared // profile.unit_tokens))]
    events: list[Event] = []
    at_s = 0.0
    for number in count():
        at_s += chance.expovariate(profile.sessions_per_s)
        if at_s > length_s:
            break
        events += _Session(profile, chance, units, f"{number}").live(at_s, shared)
    events = [event for event in events if event.at_s <= length_s]
    events.sort(key=lambda event: event.at_s)
    return Workload(
        name=name, unit_tokens=profile.unit_tokens, events=events, scored_from_s=length_s / 2
    )


class _Session:
    """One conversation of one user."""

    def __init__(
        self, profile: Profile, chance: random.Random, units: Iterator[int], name: str
    ) -> None:
        self._profile = profile
        self._chance = chance
        self._units = units
        self._name = name
        self._owner = name.split("/", maxsplit=1)[0]

    def live(self, at_s: float, root: list[int]) -> Iterator[Event]:
        profile, chance = self._profile, self._chance
        paths: list[tuple[list[int], int]] = []
        reply: list[int] = []
        before_s = at_s - 20.0
        yield from self._say(before_s, PresenceState.OPEN)
        for turn in count():
            typed: list[int] = []
            if paths and chance.random() < profile.regenerations:
                prompt = paths[-1][0][: paths[-1][1]]
            else:
                typed = self._some(profile.message if paths else profile.opening)
                prompt = (self._base(paths) or root) + typed
            yield from self._wait(before_s, at_s, self._tokens(reply), self._tokens(typed))
            reply = self._some(profile.reply)
            path = prompt + reply
            paths.append((path, len(prompt)))
            yield self._turn(at_s, path, len(prompt))
            yield from self._say(at_s, PresenceState.OPEN)
            if turn == 1 and chance.random() < profile.children:
                child = _Session(profile, chance, self._units, f"{self._name}/child")
                yield from child.live(at_s + 1.0, path)
            goes_on = profile.goes_on[min(turn, len(profile.goes_on) - 1)]
            if chance.random() >= goes_on or turn > 200:
                yield from self._leave(at_s, self._tokens(reply))
                return
            before_s, at_s = at_s, at_s + self._lognormal(profile.gap_s)

    def _base(self, paths: list[tuple[list[int], int]]) -> list[int]:
        """What the next message goes on from: the last turn, or, edited, an earlier one."""
        if not paths:
            return []
        if len(paths) > 1 and self._chance.random() < self._profile.edits:
            return paths[self._chance.randrange(len(paths) - 1)][0]
        return paths[-1][0]

    def _wait(self, start_s: float, end_s: float, reply: int, typed: int) -> Iterator[Event]:
        """Between two turns: the user reads, is away perhaps, comes back, types."""
        chance, profile = self._chance, self._profile
        if chance.random() < profile.breaks:
            yield from self._say(start_s + 1.0, PresenceState.CLOSED)
            yield from self._say(
                min(end_s, start_s + chance.uniform(5.0, 30.0)), PresenceState.OPEN
            )
        types_s = max(start_s, end_s - TYPING_S * min(TYPED_TOKENS, typed))
        leaves_s = start_s + READING_S * reply
        back_s = types_s - chance.uniform(2.0, 10.0)
        if back_s - leaves_s > AWAY_S:
            if back_s - leaves_s > 600.0 and chance.random() < profile.closes:
                yield from self._say(leaves_s, PresenceState.CLOSED)
                yield from self._say(back_s, PresenceState.OPEN)
            elif chance.random() < profile.hides:
                yield from self._say(leaves_s, PresenceState.HIDDEN)
                yield from self._say(back_s, PresenceState.OPEN)
        if typed:
            yield from self._say(types_s, PresenceState.TYPING)

    def _leave(self, at_s: float, reply: int) -> Iterator[Event]:
        """The last answer is read; then the tab is closed, or stays where it is for ever."""
        after_s = at_s + READING_S * reply * self._lognormal((1.0, 0.5))
        forgotten = self._chance.random() < self._profile.forgets
        yield from self._say(after_s, PresenceState.HIDDEN if forgotten else PresenceState.CLOSED)

    def _tokens(self, units: list[int]) -> int:
        return len(units) * self._profile.unit_tokens

    def _say(self, at_s: float, state: PresenceState) -> Iterator[Event]:
        if self._profile.sockets:
            yield Signal(at_s=max(0.0, at_s), owner=self._owner, session=self._name, state=state)

    def _turn(self, at_s: float, path: list[int], prompt: int) -> Turn:
        return Turn(
            at_s=at_s,
            owner=self._owner,
            session=self._name,
            path=array("I", path),
            prompt=prompt,
            shared=-(-self._profile.shared // self._profile.unit_tokens),
            kept=len(path),
        )

    def _some(self, size: tuple[float, float]) -> list[int]:
        tokens = min(self._lognormal(size), 100_000.0)
        return [next(self._units) for _ in range(max(1, round(tokens / self._profile.unit_tokens)))]

    def _lognormal(self, size: tuple[float, float]) -> float:
        return self._chance.lognormvariate(math.log(size[0]), size[1])
