"""Recorded decode steps: what is padded, and that they draw what steps draw that are launched.

CUDA graphs and the flash-attn packages have strict stand-ins here (`tests/kit/recorded.py`,
`tests/kit/flash.py`).
"""

import dataclasses

import msgspec
import pytest
import torch

from engine import assembly
from engine.model import replay
from engine.model.flash import Asked, Flash2, Flash3, Flash4
from engine.model.load import LoadedModel, load
from engine.model.replay import packed, sizes_up_to
from engine.model.runner import ModelRunner
from tests.kit import loaded as kept
from tests.kit.engines import a_config
from tests.kit.flash import flash_attn_2, flash_attn_3, flash_attn_4
from tests.kit.model import Hand, Line, run_of
from tests.kit.pressure import pressed, talk_under_pressure
from tests.kit.random_model import random_model
from tests.kit.recorded import recording

KERNELS = (Flash2(flash_attn_2()), Flash3(flash_attn_3()), Flash4(flash_attn_4()))
CONFIG = a_config(dtype="bfloat16", kernels="torch", kv_memory_bytes=4 << 20, max_running=5)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    return load(a_config(model=random_model(folder), dtype="bfloat16", kernels="torch"))


@pytest.fixture(autouse=True)
def _graphs(monkeypatch):
    monkeypatch.setattr(replay, "recording", recording)


def test_few_sizes_are_recorded_and_few_rows_wasted():
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(5) == (1, 2, 4, 8)
    assert sizes_up_to(64) == (1, 2, 4, 8, 16, 32, 48, 64)


def test_rows_of_padding_begin_a_sequence_in_the_spare_block():
    runs = [run_of([7], 33, [5, 2, 9, 4]), run_of([8], 15, [6])]

    words, table = packed(runs, 4, block_tokens=16, scratch=99)

    assert words[:4, :4].tolist() == [
        [7, 8, 0, 0],
        [33, 15, 0, 0],
        [9 * 16 + 1, 6 * 16 + 15, 99 * 16, 99 * 16],
        [34, 16, 1, 1],
    ]
    assert words[4].tolist() == [0, 34, 50, 51, 52]
    assert table.tolist() == [[5, 2, 9], [6, 99, 99], [99, 99, 99], [99, 99, 99]]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_06_a_replayed_step_draws_what_a_launched_one_draws(loaded, kernel):
    served = dataclasses.replace(loaded, flash=kernel)
    replaying, launching = ModelRunner(served, CONFIG), ModelRunner(served, CONFIG)

    replaying.warm_up()
    told = [_talk(Hand(runner)) for runner in (replaying, launching)]

    assert replaying._replay is not None
    assert launching._replay is None
    assert told[0] == told[1]
    # Whatever padding wrote lies in a block that no sequence is ever given.
    spare = replaying.pool.block_tokens
    ours, theirs = (runner.pool._store[:, :, :-spare] for runner in (replaying, launching))
    torch.testing.assert_close(ours, theirs, equal_nan=True, atol=2e-2, rtol=2e-2)
    assert replaying.blocks == replaying.pool.blocks - 1


def _talk(hand: Hand) -> list[list[int]]:
    """Three lines that come and go, so that one, two and three rows are padded."""
    lines = [Line(range(10, 31), [0, 3]), Line(range(40, 48), [1]), Line(range(50, 58), [2])]
    for line in lines:
        hand.step(line.run(tokens=len(line.token_ids) - 1))
    for going in (lines, lines[1:], lines[:1], lines, lines):
        drawn = hand.step(*(line.run() for line in going))
        for line, token_id in zip(going, drawn, strict=True):
            assert token_id is not None
            line.token_ids.append(token_id)
    return [line.output_ids for line in lines]


class Waiting(Flash3):
    """Looks at a number on the host, as a model of experts may do between its layers."""

    def attend(self, asked: Asked) -> torch.Tensor:
        assert asked.tables.tokens.max().item() > 0
        return super().attend(asked)


class Stale(Flash3):
    """Attends over as many positions as there were when it was recorded."""

    def attend(self, asked: Asked) -> torch.Tensor:
        tables = dataclasses.replace(asked.tables, tokens=asked.tables.tokens * 0 + 1)
        return super().attend(
            asked._replace(tables=tables) if asked.tables.most_rows == 1 else asked
        )


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (Waiting(flash_attn_3()), "operation not permitted when stream is capturing"),
        (Stale(flash_attn_3()), "one of 1 is off by"),
    ],
)
def test_what_cannot_be_recorded_rightly_is_launched(loaded, kernel, why, caplog):
    runner = ModelRunner(dataclasses.replace(loaded, flash=kernel), CONFIG)

    runner.warm_up()

    assert runner._replay is None
    assert f"decode steps are not recorded: {why}" in caplog.text


def test_a_step_whose_sums_must_not_depend_on_padding_is_launched(loaded):
    kernel = KERNELS[1]
    config = msgspec.structs.replace(CONFIG, deterministic=True)
    runner = ModelRunner(dataclasses.replace(loaded, flash=kernel), config)

    runner.warm_up()

    assert runner._replay is None
    assert runner.blocks == runner.pool.blocks


@pytest.mark.parametrize("kernel", KERNELS[2:], ids=lambda kernel: kernel.name)
async def test_07_conversations_over_flash_attn_meet_no_poison(loaded, kernel, monkeypatch):
    served = dataclasses.replace(loaded, flash=kernel)
    for place, name in ((assembly, "load"), (kept, "load_once")):
        monkeypatch.setattr(place, name, lambda *_: served)

    assert await talk_under_pressure(pressed(CONFIG, max(16, kernel.block_tokens))) == kernel.name
