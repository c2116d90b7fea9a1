"""The trace simulator on small workloads: real index, leases and retention against plain models."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gaps import fit, likelihood, observe
from benchmarks.hit_rate import measure, policies, table
from benchmarks.profiles import PROFILES, generate
from benchmarks.replay import Policy, optimum, replay
from benchmarks.workloads import Workload, read_trace, reused_units
from engine.config import PREFIX_INDEXES
from engine.kv.returns import MOONCAKE


def trace(folder, paths: list[list[int]]) -> Workload:
    """A Mooncake trace whose prompts go, unit by unit, through the choices of each path."""
    names: dict[tuple[int, ...], int] = {(): 0}
    lines = []
    for at, path in enumerate(paths):
        prefixes = [tuple(path[:end]) for end in range(len(path) + 1)]
        ids = [names.setdefault(prefix, len(names)) for prefix in prefixes]
        row = {"timestamp": 9000 * at, "input_length": 512 * len(ids), "output_length": 1}
        lines.append(json.dumps({**row, "hash_ids": ids}))
    file = folder / "trace.jsonl"
    file.write_text("\n".join(lines))
    return read_trace(file)


def plain_lru(workload: Workload, units: int) -> int:
    """Hits of the plainest least-recently-used cache of prefixes, the end of a path first."""
    used: dict[int, tuple[int, int]] = {}
    hits = 0
    for number, turn in enumerate(workload.turns()):
        known = next((at for at, u in enumerate(turn.path) if u not in used), len(turn.path))
        if turn.at_s >= workload.scored_from_s:
            hits += known
        used |= {unit: (number, -place) for place, unit in enumerate(turn.path)}
        for unit in sorted(used, key=used.__getitem__)[: max(0, len(used) - units)]:
            del used[unit]
    return hits


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=2, max_size=40)


@settings(max_examples=50)
@given(paths=paths, units=st.integers(8, 24), index=st.sampled_from(PREFIX_INDEXES))
def test_lru_equals_a_plain_one_and_the_bound_is_above_all(tmp_path_factory, paths, units, index):
    workload = trace(tmp_path_factory.mktemp("trace"), paths)

    bound = optimum(workload, units).hits
    whether = optimum(workload, units, knows_when=False).hits
    lru = replay(workload, units, Policy(index=index)).hits
    assert lru == plain_lru(workload, units) <= whether <= bound
    assert replay(workload, units, Policy(model=MOONCAKE, index=index)).hits <= bound
    assert replay(workload, units, Policy(ttl_s=20.0, index=index)).hits <= bound


def test_enough_memory_finds_everything_that_was_there_before(tmp_path):
    workload = trace(tmp_path, [[1], [1, 2], [2], [1, 2, 3], [2, 1]])

    # The shared unit each time, and of [1, 2, 3] and [2, 1] what is known.
    assert reused_units(workload) == 4
    assert replay(workload, 50, Policy()).hits == optimum(workload, 50).hits == 1 + 3 + 2


def test_conversations_are_found_by_their_prefixes(tmp_path):
    workload = trace(tmp_path, [[1], [2], [1, 1], [2, 2], [1, 1, 1], [3, 3, 3]])

    sessions = [turn.session for turn in workload.turns()]

    assert sessions == ["c0", "c1", "c0", "c1", "c0", "c5"]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_is_the_same_for_the_same_seed(name):
    once, again, other = (generate(name, seed, length_s=300.0) for seed in (1, 1, 2))

    assert once == again != other
    assert all(turn.prompt <= turn.kept for turn in once.turns())


def test_both_indexes_let_the_same_go():
    workload = generate("chat-small", length_s=400.0)
    units = reused_units(workload) // 3

    scores = [
        replay(workload, units, Policy(model=MOONCAKE, heeds=True, index=index)).hits
        for index in PREFIX_INDEXES
    ]

    assert len(set(scores)) == 1


def test_the_fitted_model_is_at_least_as_likely_as_the_one_it_began_with():
    workload = generate("chat-long", length_s=600.0)
    seen = observe(workload)

    fitted = fit(workload)

    assert sum(likelihood(fitted, one) for one in seen) >= sum(
        likelihood(MOONCAKE, one) for one in seen
    )


def test_a_report_has_a_column_for_each_policy():
    workload = generate("chat-small", length_s=200.0)
    named = policies(MOONCAKE, signals=True, index="radix")

    rows = measure(workload, named, (0.5,))

    lines = table(rows).splitlines()
    assert len(lines) == 3
    assert all(f" {name} |" in lines[0] for name in [*named, "whether", "optimum"])
