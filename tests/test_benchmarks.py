"""The trace simulator on small workloads against plain models, and the command that measures a GPU."""

import json
import math
import subprocess
import sys

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from benchmarks.card import Work
from benchmarks.gaps import fit, likelihood, observe
from benchmarks.gpu import Report
from benchmarks.gpu_rows import FEW
from benchmarks.hit_rate import measure, policies, table
from benchmarks.profiles import PROFILES, generate
from benchmarks.replay import Policy, optimum, replay
from benchmarks.workloads import Workload, read_trace, reused_units
from engine.config import PREFIX_INDEXES
from engine.kv.returns import MOONCAKE
from tests.kit.random_model import random_model
from tests.kit.server import ROOT


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


@settings(max_examples=20)
@given(paths=paths, units=st.integers(8, 24), index=st.sampled_from(PREFIX_INDEXES))
def test_lru_equals_a_plain_one_and_the_bound_is_above_all(tmp_path_factory, paths, units, index):
    workload = trace(tmp_path_factory.mktemp("trace"), paths)

    bound = optimum(workload, units).hits
    whether = optimum(workload, units, knows_when=False).hits
    lru = replay(workload, units, Policy(index=index)).hits
    assert lru == plain_lru(workload, units) <= bound
    # Who knows only what is used again may keep the wrong one of two, and find less than LRU.
    assert whether <= bound
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


@pytest.mark.long
def test_the_command_for_a_gpu_runs_on_a_small_model_of_a_cpu(tmp_path):
    file = tmp_path / "gpu.json"
    done = gpu("--small", "--device", "cpu", "--data-dir", str(tmp_path), "--json", str(file))

    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    values = {(row.name, row.size): row.value for row in report.rows}
    for size in FEW.prefills:
        assert values["prefill", size] > 0
    for size in (*FEW.streams, *FEW.sessions):
        assert values["decode, streams", size] > 0
        assert values["sessions, reply tokens", size] > 0
    for size in FEW.histories:
        assert values["first token behind, sooner", size] > 0
    # It comes from host memory, or is computed where that is thought to be sooner.
    assert 0 <= values["back from host memory, found", FEW.parked_tokens] <= FEW.parked_tokens + 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_command_says_so_and_measures_nothing(tmp_path):
    done = gpu("--data-dir", str(tmp_path), "--json", str(tmp_path / "gpu.json"))

    assert done.returncode == 2
    assert done.stdout.startswith("torch finds no CUDA device here: nothing was measured")
    assert done.stdout.count("\n") == 1
    assert not (tmp_path / "gpu.json").exists()


def test_what_a_model_takes_is_counted(tmp_path):
    layers, hidden, heads, kv_heads, size, inner = 2, 64, 4, 2, 16, 96
    shape = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
    }
    model = random_model(tmp_path, shape)
    work = Work(model, 2)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    head = math.prod(shapes["lm_head.weight"])
    weights = sum(math.prod(size) for name, size in shapes.items() if "_proj" in name)

    attended = 4 * layers * heads * size * (1 + 2 + 3)
    assert work.prefill(3) == 2 * 3 * weights + attended + 2 * head
    kv = 2 * layers * kv_heads * size
    assert work.step_bytes(5, 7) == 2 * (weights + head + 5 * 7 * kv)


def gpu(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
