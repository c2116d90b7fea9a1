"""A step on a GPU has the host wait for nothing but what was drawn, and for that in `collect` alone.

No GPU is needed: the card is not there (`tests/kit/card.py`).
"""

import copy
import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch

from engine.model import cascade
from engine.model.cascade import Cascade
from engine.model.flash import Asked, Flash3, FlashKernel
from engine.model.load import LoadedModel, load
from engine.model.pool import FP8
from engine.model.reading import Part
from engine.model.replay import Replay
from engine.model.runner import ModelRunner
from engine.step import BlockId, Copy, Plan, Run, Wipe
from tests.kit.card import CARD, watched
from tests.kit.draws import SAMPLINGS, draws_of
from tests.kit.engines import a_config
from tests.kit.model import run_of
from tests.kit.random_model import random_model

CONFIG = a_config(
    kernels="torch", kv_memory_bytes=64 << 20, max_running=32, checks=False, poison=False
)
ALL = range(1, 1 + len(SAMPLINGS))


class Silent(Flash3):
    """Has the shape of an answer."""

    def attend(self, asked: Asked) -> torch.Tensor:
        return torch.empty_like(asked.query)

    def attend_apart(self, asked: Asked) -> Part:
        weight = asked.query.new_empty(asked.query.shape[:2], dtype=torch.float32)
        return Part(torch.empty_like(asked.query), weight)


BACKENDS = {"torch": None, "flash-attn": Silent(None)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    """With its weights on the card, in bfloat16."""
    folder = tmp_path_factory.mktemp("model")
    found = load(msgspec.structs.replace(CONFIG, model=random_model(folder)))
    return dataclasses.replace(
        found,
        model=copy.deepcopy(found.model).to(CARD, torch.bfloat16),
        kv=msgspec.structs.replace(found.kv, dtype_bytes=2),
        dtype=torch.bfloat16,
        kv_dtype=torch.bfloat16,
        device=CARD,
    )


@pytest.fixture(autouse=True)
def _costs(monkeypatch):
    monkeypatch.setitem(cascade._DETOUR_BYTES, CARD.type, cascade._DETOUR_BYTES["cuda"])


def decodes(starts: Sequence[int], *, shared: int = 0) -> list[Run]:
    """A row each, drawing in every way; the first `shared` blocks are the same."""
    runs = []
    for row, (start, draw) in enumerate(
        zip(starts, draws_of(list(SAMPLINGS.values())), strict=False)
    ):
        own = range(100 * (row + 1), 100 * (row + 1) + 90 - shared)
        run = run_of([7], start, [*range(1, 1 + shared), *own])
        runs.append(msgspec.structs.replace(run, draw=draw))
    return runs


def assert_waits_for_tokens_alone(
    runner: ModelRunner, runs: Sequence[Run], *, fetched: int = 1
) -> None:
    plan = Plan(
        step=1,
        copies=(Copy(source=BlockId(3), target=BlockId(5), slots=7),),
        runs=tuple(runs),
        wipes=(Wipe(block=BlockId(8)), Wipe(block=BlockId(9), behind=3)),
    )

    with watched() as traffic:
        launched = runner.launch(plan)

    assert traffic.waits == []
    assert traffic.fetched == fetched
    with watched() as traffic:
        result = runner.collect(launched)
    assert (traffic.waits, traffic.fetched) == ([], 0)
    assert [len(run.drawn) for run in result.runs] == [int(run.draw is not None) for run in runs]


@pytest.mark.parametrize("kernel", BACKENDS.values(), ids=BACKENDS)
def test_a_step_of_decodes_and_prompts_waits_for_its_tokens_alone(loaded, kernel):
    runner = ModelRunner(dataclasses.replace(loaded, flash=kernel), CONFIG)
    prompt = run_of(range(40), 0, range(1, 10))
    turn = msgspec.structs.replace(
        run_of(range(9), 20, range(11, 20)), draw=draws_of([SAMPLINGS["hot"]])[0]
    )

    assert_waits_for_tokens_alone(runner, [*decodes(ALL), prompt, turn])
    assert_waits_for_tokens_alone(runner, [prompt], fetched=0)


@pytest.mark.parametrize("kernel", BACKENDS.values(), ids=BACKENDS)
def test_so_does_one_that_reads_a_shared_prefix_once(loaded, kernel, monkeypatch):
    monkeypatch.setitem(cascade._DETOUR_BYTES, CARD.type, 0)
    runner = ModelRunner(dataclasses.replace(loaded, flash=kernel), CONFIG)
    runs = decodes([500] * 6, shared=30)
    assert isinstance(runner._attention, Cascade)
    assert runner._attention.groups_of(runs)

    assert_waits_for_tokens_alone(runner, runs)


def test_so_does_one_over_kv_in_fp8(loaded):
    kv = msgspec.structs.replace(loaded.kv, dtype_bytes=1)
    runner = ModelRunner(dataclasses.replace(loaded, kv=kv, kv_dtype=FP8), CONFIG)

    assert_waits_for_tokens_alone(runner, decodes(ALL))


def test_passes_that_are_apart_are_launched_before_any_is_waited_for(loaded):
    runner = ModelRunner(loaded, msgspec.structs.replace(CONFIG, deterministic=True))

    assert_waits_for_tokens_alone(runner, decodes([3, 4, 5]), fetched=3)


def test_so_does_one_that_is_replayed(loaded):
    kernel: FlashKernel = Silent(None)
    runner = ModelRunner(dataclasses.replace(loaded, flash=kernel), CONFIG)
    runner._replay = Replay(loaded.model, runner.pool, kernel, most_rows=32, most_tokens=1024)

    assert_waits_for_tokens_alone(runner, decodes(ALL))


@pytest.mark.parametrize(
    "look",
    [
        lambda rows: rows.max().item(),
        lambda rows: rows[rows > 0],
        lambda rows: rows.nonzero(),
        lambda rows: bool(rows.isnan().any()),
        lambda rows: rows[torch.arange(2)],
        lambda rows: rows.cpu(),
        lambda rows: rows.tolist(),
        lambda rows: rows[[0, 1]],
        lambda rows: rows.copy_(torch.zeros(4, 8)),
        lambda rows: torch.tensor([1, 2], device=rows.device),
        lambda rows: torch.from_numpy(np.zeros(2)).to(rows.device),
    ],
)
def test_every_way_of_waiting_is_seen(look):
    with watched() as traffic:
        rows = torch.empty(4, 8, device=CARD)
        try:
            look(rows)
        except (RuntimeError, NotImplementedError, AssertionError):
            return  # refused, as what has no numbers refuses to tell them

    assert traffic.waits
