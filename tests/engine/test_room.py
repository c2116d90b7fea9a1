"""How large the pool is: the arithmetic and its refusals, and the largest step as it is computed."""

import pytest
import torch
from msgspec.structs import replace

from engine.errors import Misconfigured
from engine.model.load import load
from engine.model.room import (
    Layout,
    blocks_in,
    check_fits,
    largest_step,
    room_of_card,
    room_of_cpu,
)
from engine.model.runner import ModelRunner
from tests.kit.engines import a_config
from tests.kit.model import loaded_model, model_config
from tests.kit.random_model import random_model

GIB = 1 << 30
MIB = 1 << 20
CARD = room_of_card("cuda:0", (60 * GIB, 80 * GIB), 16 * GIB, 2 * GIB)
"""60 of 80 GiB are free behind the weights; a step takes 2, a twentieth stays: 54 are left."""
LAYOUT = Layout(block_bytes=2 * MIB, block_tokens=16, layers=32, copied_layers=0, usual_tokens=2048)
COPYING = replace(LAYOUT, copied_layers=4)


def words(room, layout=LAYOUT, asked=None) -> str:
    with pytest.raises(Misconfigured) as refused:
        check_fits(room, layout, asked, blocks_in(room, layout, asked))
    return str(refused.value)


def fitting(room, layout=LAYOUT, asked=None) -> int:
    blocks = blocks_in(room, layout, asked)
    check_fits(room, layout, asked, blocks)
    return blocks


def test_a_pool_takes_what_a_card_has_left():
    assert fitting(CARD) == 54 * GIB // (2 * MIB)
    assert fitting(CARD, COPYING) == 48 * GIB // (2 * MIB)  # 4 of 36 parts are for the copies


def test_a_small_card_keeps_half_a_gibibyte():
    small = room_of_card("cuda:0", (5 * GIB, 6 * GIB), GIB, GIB)

    assert small.left_bytes == 3.5 * GIB


def test_a_pool_takes_a_quarter_of_a_machine_and_two_gibibytes_at_most():
    assert fitting(room_of_cpu(4 * GIB, GIB)) == GIB // (2 * MIB)
    assert fitting(room_of_cpu(64 * GIB, GIB)) == 2 * GIB // (2 * MIB)


@pytest.mark.parametrize("room", [CARD, room_of_cpu(54 * GIB, GIB)])
def test_what_is_asked_for_is_given_where_it_fits(room):
    assert fitting(room, asked=54 * GIB) == 54 * GIB // (2 * MIB)
    assert fitting(room, asked=256 * MIB) == 128


def test_more_than_a_card_has_left_is_refused_with_all_figures():
    assert words(CARD, asked=55 * GIB) == (
        "kv_memory_bytes is 55 GiB: such a pool does not fit. Behind weights of 16 GiB cuda:0 has "
        "60 GiB free; the largest step takes 2 GiB, 4 GiB stay in reserve, so a pool may take "
        "54 GiB, and needs 2 MiB for 16 tokens: ask for at most 55296MiB, or leave it out"
    )


def test_more_than_a_machine_has_left_is_refused_alike():
    assert words(room_of_cpu(3 * GIB, GIB), asked=4 * GIB) == (
        "kv_memory_bytes is 4 GiB: such a pool does not fit. Behind weights of 1 GiB the machine has "
        "3 GiB free; the largest step takes 0 bytes, 0 bytes stay in reserve, so a pool may take "
        "3 GiB, and needs 2 MiB for 16 tokens: ask for at most 3072MiB, or leave it out"
    )


def test_a_card_that_is_full_is_refused_whatever_was_asked_for():
    full = room_of_card("cuda:0", (6 * GIB, 80 * GIB), 72 * GIB, 2 * GIB)

    for asked, needed in ((None, "256 MiB"), (128 * MIB, "2 MiB"), (8 * GIB, "2 MiB")):
        assert f"a pool may take 0 bytes, and needs {needed}" in words(full, asked=asked)
        assert "choose a smaller model" in words(full, asked=asked)


def test_a_pool_that_nobody_asked_for_holds_a_step_or_is_refused():
    told = words(room_of_card("cuda:0", (6 * GIB + 128 * MIB, 80 * GIB), 72 * GIB, 2 * GIB))

    assert "may take 128 MiB, and needs 256 MiB for 2048 tokens: free some" in told


def test_a_single_block_is_a_pool_where_it_was_asked_for_and_less_is_refused():
    assert fitting(CARD, asked=2 * MIB) == 1
    told = words(CARD, asked=MIB)
    assert told.endswith("needs 2 MiB for 16 tokens: ask for at least 2MiB, or leave it out")


def test_fewer_blocks_on_another_rank_count_as_well():
    with pytest.raises(Misconfigured, match="needs 256 MiB for 2048 tokens"):
        check_fits(CARD, LAYOUT, None, 3)
    with pytest.raises(Misconfigured, match="needs 2 MiB for 16 tokens"):
        check_fits(CARD, LAYOUT, 2 * MIB, 0)


def test_a_runner_refuses_as_the_arithmetic_does():
    loaded = loaded_model()

    with pytest.raises(Misconfigured, match=r"kv_memory_bytes is 1 MiB.*at least 3MiB"):
        ModelRunner(loaded, replace(model_config(), block_tokens=64, kv_memory_bytes=MIB))
    with pytest.raises(
        Misconfigured, match=r"kv_memory_bytes is 1.05e\+06 GiB: .* the machine has"
    ):
        ModelRunner(loaded, replace(model_config(), kv_memory_bytes=1 << 50))


def test_the_largest_step_is_computed_over_one_block(tmp_path):
    config = a_config(model=random_model(tmp_path), kernels="torch", kv_memory_bytes=4 * MIB)
    runner = ModelRunner(load(config), config)
    runner.pool, _ = runner._pool_of(1, poison=False)

    plan = largest_step(rows=128, draws=8, context_tokens=1000, block_tokens=16)
    result = runner.collect(runner.launch(plan))

    assert [len(run.token_ids) for run in plan.runs] == [121, *[1] * 7]
    assert {run.start + len(run.token_ids) for run in plan.runs} == {1000}
    assert [len(run.drawn[0].top) for run in result.runs] == [20] * 8
    assert torch.count_nonzero(runner.pool.keys(0)) > 0


def test_the_largest_step_is_no_longer_than_the_context():
    plan = largest_step(rows=512, draws=1, context_tokens=100, block_tokens=16)

    (run,) = plan.runs
    assert (run.start, len(run.token_ids), len(run.block_table)) == (0, 100, 7)


def test_a_pool_with_a_block_that_no_sequence_gets_has_another():
    spare = replace(LAYOUT, spare_tokens=16)

    check_fits(CARD, spare, 4 * MIB, 2)
    with pytest.raises(Misconfigured, match="needs 4 MiB for 32 tokens"):
        check_fits(CARD, spare, 2 * MIB, 1)
