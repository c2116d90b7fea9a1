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

from benchmarks.workloads import Event, Signal, Turn, Workload
from engine.api import Hold, RetentionClass

OPEN = Hold(retention=RetentionClass.RECENT)
TYPING = Hold(retention=RetentionClass.LIVE, ttl_s=120.0)
HIDDEN = Hold(retention=RetentionClass.RECENT)
CLOSED = Hold(retention=RetentionClass.IDLE)

LENGTH_S = 3600.0
TYPING_S = 0.8
"""Seconds a token: four characters at five a second."""


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
    hides: float = 0.35
    """Chance that the tab is hidden while its user reads and thinks."""
    forgets: float = 0.15
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
        message = self._some(profile.opening)
        paths: list[tuple[list[int], int]] = []
        before_s = at_s - 20.0
        yield from self._say(before_s, OPEN)
        for turn in count():
            begin_s = max(before_s, at_s - len(message) * profile.unit_tokens * TYPING_S)
            yield from self._say(begin_s, TYPING)
            base = self._base(paths) or root
            kind = chance.random() if paths else 1.0
            prompt = (
                paths[-1][0][: paths[-1][1]] if kind < profile.regenerations else base + message
            )
            path = prompt + self._some(profile.reply)
            paths.append((path, len(prompt)))
            yield self._turn(at_s, path, len(prompt))
            yield from self._say(at_s, OPEN)
            if turn == 1 and chance.random() < profile.children:
                child = _Session(profile, chance, self._units, f"{self._name}/child")
                yield from child.live(at_s + 1.0, path)
            goes_on = profile.goes_on[min(turn, len(profile.goes_on) - 1)]
            before_s, gap_s = at_s, self._lognormal(profile.gap_s)
            if chance.random() >= goes_on or turn > 200:
                yield from self._leave(at_s)
                return
            at_s += gap_s
            yield from self._think(before_s, at_s)
            message = self._some(profile.message)

    def _base(self, paths: list[tuple[list[int], int]]) -> list[int]:
        """What the next message goes on from: the last turn, or, edited, an earlier one."""
        if not paths:
            return []
        if len(paths) > 1 and self._chance.random() < self._profile.edits:
            return paths[self._chance.randrange(len(paths) - 1)][0]
        return paths[-1][0]

    def _think(self, start_s: float, end_s: float) -> Iterator[Event]:
        chance, profile = self._chance, self._profile
        if chance.random() < profile.breaks:
            yield from self._say(start_s + 1.0, CLOSED)
            yield from self._say(min(end_s, start_s + chance.uniform(5.0, 30.0)), OPEN)
        if end_s - start_s > 600.0 and chance.random() < 0.5:
            yield from self._say(start_s + 300.0, CLOSED)
        elif chance.random() < profile.hides:
            yield from self._say(start_s + min(20.0, (end_s - start_s) / 2), HIDDEN)

    def _leave(self, at_s: float) -> Iterator[Event]:
        after_s = at_s + self._lognormal((60.0, 1.0))
        forgotten = self._chance.random() < self._profile.forgets
        yield from self._say(after_s, HIDDEN if forgotten else CLOSED)

    def _say(self, at_s: float, wish: Hold) -> Iterator[Event]:
        if self._profile.sockets:
            yield Signal(at_s=max(0.0, at_s), owner=self._owner, session=self._name, wish=wish)

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
