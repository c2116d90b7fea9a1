"""Law 5, on both indexes at once: whatever is asked of them, and under either rule of retention."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from engine.api import Hold, Park, RetentionClass, Subject, SubjectKind, Warm, Wish
from engine.config import RETENTIONS
from engine.figures import CacheChange
from engine.kv.tiers import TierSizes
from tests.kit.desk import ANN, BEN, config, seeded
from tests.kit.machine import PERSONA
from tests.kit.twins import TwinLife

LIFE = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)

TIERS = {
    "pool only": TierSizes(token_bytes=1),
    "host": TierSizes(token_bytes=1, host_bytes=300, segment_tokens=16),
    "host and disk": TierSizes(token_bytes=1, host_bytes=120, disk_bytes=300, segment_tokens=16),
}

ALWAYS = {CacheChange.PUBLISHED, CacheChange.EVICTED, CacheChange.FORGOTTEN, CacheChange.LEASED}
BELOW = {CacheChange.PARKED, CacheChange.RESTORED, CacheChange.LET_GO}
HAPPENS = {
    "pool only": ALWAYS,
    "host": ALWAYS | BELOW,
    "host and disk": ALWAYS | BELOW | {CacheChange.SPILLED},
}
"""What a life of chats has to meet, or it has proved nothing."""


def test_05_both_indexes_live_the_same_life():
    """The same matches, receipts, leases and evictions after every operation of any life."""
    run_state_machine_as_test(TwinLife, settings=LIFE)


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("tiers", TIERS)
def test_05_both_indexes_evict_park_and_restore_the_same_in_the_same_order(tiers, retention):
    """Chats that come back long after they were pushed out: what chance alone seldom asks for."""
    life = Chats(tiers, retention)

    for _ in range(125):
        for _ in range(4):
            life.go_on()
        life.twins.check_everything()

    life.twins.teardown()  # everybody is forgotten, and the pool is at its baseline
    life.twins.check_everything()
    assert life.twins.cache.journal.counted.keys() >= HAPPENS[tiers]


class Chats:
    """Some conversations on one persona, in a pool that has room for a few of them."""

    def __init__(self, tiers: str, retention: str) -> None:
        self.chance = seeded(7)
        core_config = config(
            block_tokens=4,
            pool_blocks=40,
            context_tokens=120,
            step_tokens=40,
            max_running=3,
            max_waiting=6,
            retention=retention,
            tiers=TIERS[tiers],
        )
        self.twins = TwinLife()
        self.twins._open(core_config, self.chance.sample(range(40), 40))
        self.twins.jobs, self.twins.checked = [], set()
        self.said: dict[tuple[str, str], list[int]] = {}

    def go_on(self) -> None:
        doings: dict[Callable[[], object], int] = {
            self.turn: 20,
            self.desk_steps: 40,
            self.arrive: 30,
            self.wish: 12,
            self.wait: 4,
            self.cancel: 3,
        }
        self.chance.choices([*doings], [*doings.values()])[0]()

    def turn(self) -> None:
        """The next of a conversation: what it has said so far, of which an edit may cut a part."""
        owner, session = self.chance.choice([ANN, BEN]), self.chance.choice("abcd")
        before = self.said.get((owner, session), [*PERSONA])
        if len(before) > 90 or self.chance.random() < 0.1:
            before = before[: len(PERSONA) + self.chance.randrange(20)]
        ids = [*before, *self.chance.choices(range(2, 9), k=self.chance.randrange(1, 12))]
        asked = len(self.twins.jobs)
        self.twins._submit(ids, owner, session, output=self.chance.choice([1, 5, 9]))
        if len(self.twins.jobs) > asked:
            self.said[owner, session] = ids

    def desk_steps(self) -> None:
        self.twins.desk.step()

    def arrive(self) -> None:
        """Most transfers arrive whole, in any order; one that comes to nothing now and then."""
        if moving := len(self.twins.desk.paper.moving):
            pieces = self.chance.choice([None] * 4 + [0])
            self.twins.desk.arrive(self.chance.randrange(moving), pieces=pieces)

    def wish(self) -> None:
        live = Hold(retention=RetentionClass.LIVE, ttl_s=20.0)
        wishes: list[Wish] = [Park(), Warm(), live, Hold(retention=RetentionClass.IDLE)]
        self.twins.desk.lease(self.somebody(), self.chance.choice(wishes))

    def wait(self) -> None:
        self.twins.desk.now += self.chance.choice([5.0, 900.0])

    def cancel(self) -> None:
        if self.twins.jobs:
            self.twins.desk.cancel(self.twins.jobs[-1])

    def somebody(self) -> Subject:
        owner, session = self.chance.choice([ANN, BEN]), self.chance.choice("abcd")
        return Subject(kind=SubjectKind.SESSION, subject_id=session, owner_id=owner)
