"""What is replayed: turns and signals in order, from a trace file or from a seeded profile.

A turn's path is a list of units. A unit stands for a block of tokens together with all that comes
before it (as in the Mooncake traces), so equal units are equal prefixes, and a replay needs no
token. Knows no cache.
"""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from app.frames import PresenceState

TRACE_UNIT_TOKENS = 512


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's path: a prompt of so many units, then the reply.

    The first `shared` units are the operator's. The first `kept` can be found again.
    """

    at_s: float
    owner: str
    session: str
    path: "array[int]"
    prompt: int
    shared: int
    kept: int


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's socket says."""

    at_s: float
    owner: str
    session: str
    state: PresenceState


Event = Turn | Signal


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Events in the order of time. What happens from `scored_from_s` on is scored."""

    name: str
    unit_tokens: int
    events: list[Event]
    scored_from_s: float

    def turns(self) -> Iterator[Turn]:
        return (event for event in self.events if isinstance(event, Turn))


def read_trace(path: Path) -> Workload:
    """A Mooncake trace: a JSON object a line with `timestamp` (ms), `input_length`, `hash_ids`.

    It names no conversations. A prompt goes on with the one that went through its last known unit
    most recently, if it shares at least half of that one's path; else it begins a conversation.
    """
    last: dict[int, tuple[str, int]] = {}
    turns: list[Event] = []
    for number, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        ids = row["hash_ids"]
        known = next((at for at, unit in enumerate(ids) if unit not in last), len(ids))
        session = f"c{number}"
        if known > 1:
            before, length = last[ids[known - 1]]
            session = before if 2 * known >= length else session
        last |= dict.fromkeys(ids, (session, len(ids)))
        turns.append(
            Turn(
                at_s=row["timestamp"] / 1000,
                owner="trace",
                session=session,
                path=array("I", ids),
                prompt=len(ids),
                # Unit 0 begins every prompt of these traces.
                shared=1,
                # A block that is not full has another id in the next turn, which fills it.
                kept=min(len(ids), row["input_length"] // TRACE_UNIT_TOKENS),
            )
        )
    middle_s = (turns[0].at_s + turns[-1].at_s) / 2
    return Workload(
        name=path.stem, unit_tokens=TRACE_UNIT_TOKENS, events=turns, scored_from_s=middle_s
    )


def reused_units(workload: Workload) -> int:
    """The most units at any time that are still to be used again: what would be enough memory."""
    turns = list(workload.turns())
    last_use = {unit: number for number, turn in enumerate(turns) for unit in turn.path}
    wanted: set[int] = set()
    most = 0
    for number, turn in enumerate(turns):
        for unit in turn.path:
            if last_use[unit] > number:
                wanted.add(unit)
            else:
                wanted.discard(unit)
        most = max(most, len(wanted))
    return most
