"""Decode steps as CUDA graphs: what a replayed step draws is what one launched part by part draws."""

import pytest
import torch

from engine.model.load import load
from engine.model.runner import ModelRunner
from tests.kit.engines import a_config
from tests.kit.model import Hand, Line
from tests.kit.random_model import random_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def test_06_a_replayed_step_draws_what_a_launched_one_draws(tmp_path):
    config = a_config(
        model=random_model(tmp_path), device="cuda", dtype="bfloat16", kv_memory_bytes=64 << 20
    )
    loaded = load(config)
    if loaded.flash is None:
        pytest.skip("no flash-attn package is here")
    replaying, launching = ModelRunner(loaded, config), ModelRunner(loaded, config)
    replaying.warm_up()
    assert replaying._replay is not None
    told = []
    for runner in (replaying, launching):
        hand = Hand(runner)
        lines = [Line(range(9 + at, 40), [2 * at, 2 * at + 1, 20 + at]) for at in range(3)]
        for line in lines:
            hand.step(line.run(tokens=len(line.token_ids) - 1))
        for _ in range(20):
            for line, token_id in zip(
                lines, hand.step(*(line.run() for line in lines)), strict=True
            ):
                assert token_id is not None
                line.token_ids.append(token_id)
        told.append([line.output_ids for line in lines])

    assert told[0] == told[1]
