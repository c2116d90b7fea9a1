"""What was evicted and asked for again: counted once, while it is remembered, and in its own scope."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import JobClass, Scope
from engine.config import PREFIX_INDEXES
from engine.kv import regret
from engine.kv.regret import REGRET_S, Regret
from engine.kv.tiers import TierSizes
from tests.kit.desk import ANN, BEN, Desk, config

TEXT = list(range(2, 66))
SCOPE = Scope("user")


def evicted(desk: Desk, owner_id=ANN) -> None:
    """A session of 64 tokens comes and has to go again."""
    desk.run(desk.job(TEXT, owner_id=owner_id, session="s", output=1))
    crowd(desk)


def crowd(desk: Desk) -> None:
    """Somebody else needs the whole pool."""
    desk.run(desk.job([7] * 127, owner_id=BEN, output=1))


@pytest.fixture(params=PREFIX_INDEXES)
def desk(request) -> Desk:
    return Desk(config(pool_blocks=8, context_tokens=128, prefix_index=request.param))


def test_what_is_asked_for_again_is_regretted_once(desk: Desk):
    evicted(desk)

    desk.run(desk.job([*TEXT, 70], session="s", output=1))
    first = desk.core.stats().regretted_tokens
    desk.run(desk.job([*TEXT, 71], session="s", output=1))

    assert first == desk.core.stats().regretted_tokens == 64


def test_only_what_was_let_go_is_regretted(desk: Desk):
    desk.run(desk.job(TEXT, session="s", output=1))
    desk.run(desk.job([7] * 79, owner_id=BEN, output=1))

    receipt = desk.run(desk.job([*TEXT, 70], session="s", output=1)).receipt

    assert 0 < receipt.cached_tokens < 64
    assert desk.core.stats().regretted_tokens == 64 - receipt.cached_tokens


def test_a_prompt_that_goes_another_way_is_regretted_up_to_there(desk: Desk):
    evicted(desk)

    desk.run(desk.job([*TEXT[:40], 90, 91], session="s", output=1))

    assert desk.core.stats().regretted_tokens == 32


def test_what_is_asked_for_too_late_is_not_regretted(desk: Desk):
    evicted(desk)
    desk.now += REGRET_S

    desk.run(desk.job([*TEXT, 70], session="s", output=1))

    assert desk.core.stats().regretted_tokens == 0


def test_nobody_regrets_what_another_lost(desk: Desk):
    evicted(desk)

    desk.run(desk.job([*TEXT, 70], owner_id=BEN, session="s", output=1))

    assert desk.core.stats().regretted_tokens == 0


def test_what_was_parked_and_is_restored_is_not_regretted(desk: Desk):
    sizes = TierSizes(token_bytes=1, disk_bytes=4096, segment_tokens=32)
    desk = Desk(msgspec.structs.replace(desk.config, tiers=sizes))
    desk.run(desk.job(TEXT, session="s", output=1))
    desk.now += 10_000
    desk.drain()
    crowd(desk)
    desk.drain()

    receipt = desk.run(desk.job([*TEXT, 70], session="s", output=1)).receipt

    assert receipt.restored_tokens == 64
    assert desk.core.stats().regretted_tokens == 0


def test_a_draft_that_was_let_go_is_regretted_by_its_turn(desk: Desk):
    desk.run(desk.job(TEXT, session="s", job_class=JobClass.DRAFT, output=0))
    crowd(desk)

    desk.run(desk.job([*TEXT, 70], session="s", output=1))

    assert desk.core.stats().regretted_tokens == 64


def test_the_memory_is_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(regret, "REMEMBERED_PIECES", 4)
    memory, paths = Regret(4), [array("I", [at] * 8) for at in range(6)]
    for path in paths:
        memory.remember(SCOPE, path, (0, 8), 0.0)

    for path in paths:
        memory.ask(path, ((SCOPE, 8),), (0, 8), 1.0)

    assert memory.tokens == 16
    assert not memory._pieces and not memory._ends


paths = st.lists(st.integers(2, 3), min_size=1, max_size=14)


@given(st.lists(st.tuples(paths, st.integers(0, 13)), max_size=8), paths, st.integers(0, 13))
def test_it_finds_what_a_memory_of_whole_paths_would_find(lost, prompt, cached):
    memory, known = Regret(4), set[tuple[int, ...]]()
    for ids, at in lost:
        start = min(at, len(ids) - 1)
        memory.remember(SCOPE, array("I", ids), (start, len(ids)), 0.0)
        known |= {tuple(ids[:end]) for end in range(start + 1, len(ids) + 1)}
    cached = min(cached, len(prompt))

    memory.ask(array("I", prompt), ((SCOPE, len(prompt)),), (cached, len(prompt)), 1.0)

    told = memory.tokens
    assert all(tuple(prompt[:end]) in known for end in range(cached + 1, cached + told + 1))
