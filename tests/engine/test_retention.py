"""Retention inside a class: worth, its gap model, its prices, and the queue that goes by them."""

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Hold, OwnerId, RetentionClass, Scope, SessionId, Subject, SubjectKind
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache, lease_key
from engine.kv.pins import Budget
from engine.kv.prefix import NO_END, Entry
from engine.kv.prices import LEAST_TOKENS, Prices
from engine.kv.radix import RadixIndex
from engine.kv.retention import REFRESH_S, EvictionQueue, equal_worth, retention_of
from engine.kv.returns import MOONCAKE, Habit, chance, first_turn, worth

ANN = OwnerId("ann")
SCOPES = ((Scope("ann"), NO_END),)

habits = st.builds(
    Habit,
    turns=st.integers(1, 60),
    path_tokens=st.integers(0, 100_000),
    new_tokens=st.integers(0, 100_000),
    pace=st.floats(-4, 3),
)


class Life:
    """A cache with room for few turns, and what of each session is still known."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.index = RadixIndex(self.pool, 1)
        self.cache = Cache(self.pool, self.index, 1, budget=Budget(share=1.0, share_per_owner=1.0))

    def turn(self, name: int, tokens: int, now: float) -> None:
        ids = array("I", [name * 1000 + at for at in range(tokens)])
        self.cache.expire(now)
        holding = self.cache.acquire(ids, SCOPES, known_end=tokens, now=now)
        assert holding is not None
        key = lease_key(ANN, SessionId(f"s{name}"))
        self.cache.release(holding, ids, tokens, key=key, now=now)

    def hold(self, name: int, retention: RetentionClass, now: float) -> None:
        subject = Subject(kind=SubjectKind.SESSION, subject_id=f"s{name}", owner_id=ANN)
        self.cache.lease(subject, Hold(retention=retention), now)

    def known(self, name: int, tokens: int = 1000) -> int:
        ids = array("I", [name * 1000 + at for at in range(tokens)])
        return self.cache.matched_tokens(ids, SCOPES, tokens)


@given(habit=habits, idle_s=st.floats(0, 1e6), later_s=st.floats(0, 1e6))
def test_the_chance_of_a_return_falls_with_idle_time(habit, idle_s, later_s):
    soon, late = sorted((idle_s, later_s))

    assert 0 <= chance(MOONCAKE, habit, late) <= chance(MOONCAKE, habit, soon) <= 1


@given(habit=habits, idle_s=st.floats(0, 1e5), longer=st.floats(1, 100))
def test_worth_falls_with_idle_time_once_the_usual_gap_is_over(habit, idle_s, longer):
    usual_s = MOONCAKE.median_s(habit)
    late_s = usual_s + idle_s

    assert worth(MOONCAKE, habit, late_s * longer) <= worth(MOONCAKE, habit, late_s) * 1.001
    assert worth(MOONCAKE, habit, usual_s * 100) < worth(MOONCAKE, habit, 0.0)


@given(turns=st.integers(2, 40), idle_s=st.floats(0, 3000), new_tokens=st.integers(0, 10_000))
def test_a_turn_more_makes_a_return_likelier_and_worth_more(turns, idle_s, new_tokens):
    fewer = Habit(turns=turns, path_tokens=0, new_tokens=new_tokens)
    more = Habit(turns=turns + 1, path_tokens=0, new_tokens=new_tokens)

    assert chance(MOONCAKE, more, idle_s) > chance(MOONCAKE, fewer, idle_s)
    assert worth(MOONCAKE, more, idle_s) >= worth(MOONCAKE, fewer, idle_s)


def test_a_long_first_prompt_returns_less_often_than_what_already_returned():
    first = first_turn(9500, 500)

    assert first.new_tokens == 9000
    assert chance(MOONCAKE, first.after(9700, 60.0, MOONCAKE), 0.0) > chance(MOONCAKE, first, 0.0)


def test_a_session_is_expected_back_at_its_own_pace():
    quick = slow = first_turn(100, 0)
    for turn in range(2, 12):
        quick = quick.after(100 * turn, 5.0, MOONCAKE)
        slow = slow.after(100 * turn, 500.0, MOONCAKE)

    assert MOONCAKE.median_s(quick) == pytest.approx(5.0, rel=0.05)
    assert MOONCAKE.median_s(slow) == pytest.approx(500.0, rel=0.05)
    assert worth(MOONCAKE, quick, 5.0) > worth(MOONCAKE, slow, 5.0)
    assert worth(MOONCAKE, quick, 400.0) < worth(MOONCAKE, slow, 400.0)


@given(pace=st.floats(-3, 3))
def test_nine_in_ten_of_those_who_come_back_are_recent_until_then(pace):
    habit = msgspec.structs.replace(first_turn(100, 0), pace=pace)

    until_s = MOONCAKE.recent_s(habit)

    returned = chance(MOONCAKE, habit, 0.0) - chance(MOONCAKE, habit, until_s)
    ever, later = chance(MOONCAKE, habit, 0.0), chance(MOONCAKE, habit, until_s)
    # Of all that are left by then, `later` come back; by Bayes these are a tenth of all who do.
    still = (1 - ever) / (1 - later)
    assert returned > 0
    assert still * later <= 0.1 * ever * 1.001


def test_what_was_spared_is_what_its_tokens_would_have_taken_and_nothing_before_anything_is_known():
    prices = Prices()
    unknown_s = prices.span_s(0, 1000)
    prices.learn([(0, 100)], seconds=1.0)
    prices.learn([(100, 200)], seconds=3.0)

    assert unknown_s == 0.0
    whole_s, parts_s = prices.span_s(0, 200), prices.span_s(0, 100) + prices.span_s(100, 200)
    assert whole_s == pytest.approx(parts_s)
    assert prices.span_s(100, 200) > prices.span_s(0, 100) > 0.0


def test_prices_find_the_line_that_steps_follow():
    prices = Prices()
    for start in range(0, 4096, 512):
        spans = [(start, start + 512)]
        prices.learn(spans, sum(1e-3 + 1e-7 * at for at in range(start, start + 512)))

    assert prices.token_s(0) == pytest.approx(1e-3, rel=0.01)
    assert prices.token_s(4000) == pytest.approx(1.4e-3, rel=0.01)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 600), st.floats(1e-6, 10)), max_size=20
    ),
    position=st.integers(0, 100_000),
)
def test_a_price_is_never_negative_nor_falls_with_position(steps, position):
    prices = Prices()
    for start, tokens, seconds in steps:
        prices.learn([(start, start + tokens)], seconds)

    assert 0 <= prices.token_s(0) * (1 - 1e-9) <= prices.token_s(position)


def test_short_steps_change_no_price():
    prices = Prices()
    prices.learn([(1000, 1000 + LEAST_TOKENS - 1)], 5.0)

    assert prices.token_s(0) == prices.token_s(10_000)


@given(st.data())
def test_09_whatever_is_worth_how_much_classes_and_leaves_go_in_order(data):
    life = Life(24)
    worths: dict[int, float] = {}

    def any_worth(entry: Entry, _now: float) -> float:
        return worths.setdefault(entry.entry_id, data.draw(st.floats(-10, 10)))

    life.cache._queue.weigh(any_worth)
    for name in range(4):
        life.turn(name, 6, float(name))
        rank = data.draw(st.sampled_from(["IDLE", "RECENT", "KEPT", "LIVE"]))
        life.hold(name, RetentionClass[rank], float(name))
    before = {entry: (retention_of(entry), life.known(i)) for i, entry in enumerate(_leaves(life))}
    assert len(before) == 4

    life.turn(9, data.draw(st.integers(1, 23)), 10.0)

    life.cache.check([])
    lost = [rank for entry, (rank, _) in before.items() if len(entry.ids) < 6 or not entry.parent]
    whole = [rank for entry, (rank, _) in before.items() if entry.parent and len(entry.ids) == 6]
    assert not lost or not whole or max(lost) <= min(whole)


@given(
    tokens=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    later_s=st.floats(0, 2000),
)
def test_leaves_are_taken_in_the_order_of_a_full_sort(tokens, later_s):
    life = Life(80)
    life.cache.keep_by_cost()
    for at, count in enumerate(tokens):
        life.turn(at % 5, 4 * (at // 5) + count, 40.0 * at)
    now = 40.0 * len(tokens) + later_s
    life.cache.expire(now)
    queue = life.cache._queue
    queue._refresh()
    expected = sorted(_leaves(life), key=queue._key)

    taken = []
    while (leaf := queue.take()) is not None:
        taken.append(leaf)

    assert taken == expected


def test_a_worth_that_faded_is_seen_within_the_refresh_bound():
    fading = {1: 9.0, 2: 5.0}
    queue = EvictionQueue(lambda entry, now: fading[entry.entry_id] - (now if entry.used else 0.0))
    life = Life(8)
    entries = []
    for number in (1, 2):
        ids = array("I", [number])
        table = life.pool.allocate(1) or []
        entries.append(life.index.publish(ids, SCOPES, table, (life.index.root, 1)).entry)
    fading = {entries[0].entry_id: 9.0, entries[1].entry_id: 5.0}
    entries[0].used = 1
    for entry in entries:
        queue.offer(entry)

    assert queue.upcoming(1) == [entries[1]]
    queue.now = 10.0 + REFRESH_S

    assert queue.take() is entries[0]


def test_by_cost_a_session_of_many_turns_outlives_a_newer_one_of_a_single_turn():
    by_cost, by_use = Life(20), Life(20)
    by_cost.cache.keep_by_cost()
    for life in (by_cost, by_use):
        for turn in range(1, 6):
            life.turn(1, 2 * turn, 60.0 * turn)
        life.turn(2, 10, 310.0)
        life.turn(3, 8, 320.0)

    assert by_cost.known(1) == 10
    assert by_cost.known(2) == 2
    assert (by_use.known(1), by_use.known(2)) == (2, 10)


def test_the_baseline_knows_no_worth():
    assert equal_worth(Life(1).index.root, 5.0) == 0.0


def _leaves(life: Life) -> list[Entry]:
    return [entry for entry in life.index.entries() if entry.is_leaf]
