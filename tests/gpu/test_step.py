"""A step on a GPU: drawn as on a CPU, and nothing waits for it but the one copy of what was drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

from engine.model.device_sample import Drawing, pack_draws
from engine.model.load import load
from engine.model.runner import ModelRunner
from engine.model.sample import draw_tokens
from engine.model.torch_attention import TorchAttention
from engine.step import Plan
from tests.kit.draws import SAMPLINGS, draws_of, logits_of
from tests.kit.engines import a_config
from tests.kit.model import Hand, Line
from tests.kit.paged import RAGGED, SHARED, Case, Sizes
from tests.kit.random_model import random_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


@contextmanager
def waiting_is_refused() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_gpu_draws_what_a_cpu_draws():
    draws = draws_of(list(SAMPLINGS.values()) * 3)
    logits = logits_of(len(draws))

    found = Drawing(logits.cuda(), draws).tokens()

    expected = [token.token_id for token in draw_tokens(logits, draws)]
    assert [token.token_id for token in found] == expected


def test_sampling_waits_for_nothing_before_its_copy():
    draws = draws_of(list(SAMPLINGS.values()))
    logits = logits_of(len(draws)).cuda()

    with waiting_is_refused():
        pack_draws(logits, draws)


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_a_step_is_launched_and_nothing_waited_for(tmp_path, kernels):
    config = a_config(
        model=random_model(tmp_path),
        device="cuda",
        dtype="bfloat16",
        kernels=kernels,
        kv_memory_bytes=64 << 20,
        checks=False,
    )
    runner = ModelRunner(load(config), config)
    runner.warm_up()
    hand, lines = Hand(runner), [Line(range(9, 40), [2 * at, 2 * at + 1]) for at in range(3)]
    draws = iter(draws_of(list(SAMPLINGS.values())))
    hand.step(*(line.run(tokens=30) for line in lines))
    runs = [msgspec.structs.replace(line.run(), draw=next(draws)) for line in lines]
    chunk = Line(range(50), [20, 21, 22, 23]).run(tokens=50)

    for step in (runs, [*runs, chunk], [chunk]):
        with waiting_is_refused():
            launched = runner.launch(Plan(step=1, copies=(), runs=tuple(step)))
        drawn = [len(run.drawn) for run in runner.collect(launched).runs]
        assert drawn == [int(run.draw is not None) for run in step]


@pytest.mark.parametrize("sizes", [Sizes(RAGGED), SHARED["some who share nothing"]])
def test_attention_in_torch_waits_for_nothing(sizes):
    case = Case(sizes, dtype=torch.bfloat16, device=torch.device("cuda"))

    with waiting_is_refused():
        out = case.attend(lambda pool, _: TorchAttention(pool))

    case.assert_equal(out)
