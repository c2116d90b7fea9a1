"""The pool moves bytes: copies, wipes and poison, by slot and in every layer."""

import sys
import threading

import msgspec
import psutil
import pytest
import torch

from engine.model.memory import touch, zeroed
from engine.model.paged import PagedStep
from engine.model.pool import FP8, POISON, POISONED_KEYS, ZERO, Empty, KVShape, Pool, kept
from engine.model.torch_attention import TorchAttention
from engine.step import BlockId, Copy, Run, Wipe
from tests.kit.model import run_of

SHAPE = KVShape(layers=2, kv_heads=3, head_size=4, dtype_bytes=4)


def make_pool(*, blocks: int = 8, empty: Empty = ZERO) -> Pool:
    return Pool(
        SHAPE,
        blocks=blocks,
        block_tokens=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
        empty=empty,
    )


def fill(pool: Pool) -> None:
    """Every slot of every layer holds its own number."""
    for layer in range(SHAPE.layers):
        slots = torch.arange(pool.blocks * pool.block_tokens).float()
        pool.keys(layer)[:] = (slots + 1000 * layer)[:, None, None]
        pool.values(layer)[:] = (-slots - 1000 * layer)[:, None, None]


def test_a_token_costs_what_the_shape_says():
    assert SHAPE.token_bytes == 2 * 2 * 3 * 4 * 4


def test_fp8_rounds_by_a_sixteenth_at_most_and_ends_at_its_largest():
    amounts = torch.logspace(-6, 8.8, 3000, base=2)  # up to 445.7
    small = torch.linspace(-(2**-6), 2**-6, 3000)
    beyond = torch.tensor([448.0, 460, 1e5, -torch.inf, torch.nan])

    assert (kept(amounts, FP8).float() / amounts - 1).abs().max() <= 1 / 16
    assert (kept(small, FP8).float() - small).abs().max() <= 2**-10
    assert kept(beyond, FP8).float().tolist()[:4] == [448, 448, 448, -448]
    assert bool(kept(beyond, FP8)[4].isnan())


def test_a_pool_in_fp8_is_poisoned_wiped_and_copied_like_any():
    pool = Pool(
        msgspec.structs.replace(SHAPE, dtype_bytes=1),
        blocks=4,
        block_tokens=4,
        dtype=FP8,
        device=torch.device("cpu"),
        empty=POISON,
    )
    rows = torch.full((4, 3, 4), 0.3)

    pool.put(1, torch.arange(4), rows, -rows)
    pool.copy([Copy(source=BlockId(0), target=BlockId(2), slots=2)])
    pool.wipe([Wipe(block=BlockId(0), behind=1)])

    assert bool(pool.keys(0).isnan().all())
    assert pool.keys(1)[:, 0, 0].isnan().tolist() == [
        *[False, *[True] * 7],
        *[False, False, *[True] * 6],
    ]
    assert pool.values(1)[8:10].float().unique().tolist() == [-0.3125]


def test_a_copy_takes_the_first_slots_and_no_more():
    pool = make_pool()
    fill(pool)

    pool.copy([Copy(source=BlockId(2), target=BlockId(5), slots=3)])

    assert pool.keys(1)[20:24, 0, 0].tolist() == [1008, 1009, 1010, 1023]
    assert pool.values(0)[20:24, 2, 3].tolist() == [-8, -9, -10, -23]
    assert pool.keys(0)[8:12, 0, 0].tolist() == [8, 9, 10, 11]


def test_copies_are_done_in_their_order():
    pool = make_pool()
    fill(pool)

    pool.copy(
        [
            Copy(source=BlockId(0), target=BlockId(1), slots=4),
            Copy(source=BlockId(1), target=BlockId(2), slots=4),
        ]
    )

    assert pool.keys(0)[8:12, 0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("empty", [ZERO, POISON])
def test_a_wiped_block_holds_nothing(empty):
    pool = make_pool(empty=empty)
    fill(pool)

    pool.wipe([Wipe(block=BlockId(3))])

    wiped = torch.stack([pool.keys(1)[12:16], pool.values(0)[12:16]])
    assert bool(wiped.isnan().all()) if empty is POISON else bool((wiped == 0).all())
    assert pool.keys(0)[16:20, 0, 0].tolist() == [16, 17, 18, 19]


def test_what_is_wiped_is_what_the_orders_say():
    pool, expected = make_pool(), make_pool()
    orders = [(4, 0), (1, 2), (3, 3), (2, 0), (6, 1)]
    for one in (pool, expected):
        fill(one)
    for block, behind in orders:
        for layer in range(SHAPE.layers):
            expected.key_blocks(layer)[block, behind:] = 0
            expected.value_blocks(layer)[block, behind:] = 0

    pool.wipe([Wipe(block=BlockId(block), behind=behind) for block, behind in orders])

    for layer in range(SHAPE.layers):
        assert torch.equal(pool.keys(layer), expected.keys(layer))
        assert torch.equal(pool.values(layer), expected.values(layer))


def test_a_fresh_pool_in_test_mode_is_all_poison():
    pool = make_pool(empty=POISON)

    assert bool(pool.keys(0).isnan().all())
    assert bool(pool.values(1).isnan().all())


def test_keys_alone_can_be_poison():
    pool = make_pool(empty=POISONED_KEYS)
    fresh = [pool.keys(1).clone(), pool.values(1).clone()]
    fill(pool)

    pool.wipe([Wipe(block=BlockId(3))])

    for keys, values in (fresh, (pool.keys(1)[12:16], pool.values(1)[12:16])):
        assert bool(keys.isnan().all())
        assert bool((values == 0).all())


def step_of(pool: Pool, *runs: Run) -> PagedStep:
    return PagedStep(pool, runs, TorchAttention(pool))


def attend(step: PagedStep, layer: int, rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, 6, 4, generator=generator)
    keys, values = (torch.randn(rows, 3, 4, generator=generator) for _ in range(2))
    return step.attend(layer, query, keys, values, scaling=0.5)


@pytest.mark.parametrize("table", [[0, 1, 2, 3, 4], [4, 2, 0, 6, 1]])
def test_07_attention_reads_neighbours_and_strangers_alike(table):
    straight, other = make_pool(empty=POISON), make_pool(empty=POISON)
    outputs = []

    for pool, blocks in ((straight, [1, 2, 3, 4, 5]), (other, table)):
        first = attend(step_of(pool, run_of(range(9), 0, blocks)), 0, 9, 1)
        more = attend(step_of(pool, run_of(range(5), 9, blocks)), 0, 5, 2)
        one = attend(step_of(pool, run_of([0], 14, blocks)), 0, 1, 3)
        outputs.append(torch.cat([first, more, one]))

    assert not bool(outputs[0].isnan().any())
    torch.testing.assert_close(outputs[0], outputs[1])


def test_only_the_runs_own_slots_are_written():
    pool = make_pool(empty=POISON)

    attend(step_of(pool, run_of(range(3), 0, [2]), run_of([0], 0, [5])), 1, 4, 1)

    written = (~pool.keys(1).isnan()).all(-1).all(-1).nonzero().ravel().tolist()
    assert written == [8, 9, 10, 20]
    assert bool(pool.keys(0).isnan().all())


def test_single_rows_of_very_different_length_equal_each_alone():
    pool = make_pool(blocks=32, empty=POISON)
    tables = [[0], list(range(1, 9)), [9, 11, 10], [12]]
    lengths = [1, 30, 10, 2]
    for at, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        attend(step_of(pool, run_of(range(length + 1), 0, table)), 0, length + 1, at)
    generator = torch.Generator().manual_seed(9)
    query = torch.randn(4, 6, 4, generator=generator)
    keys, values = (torch.randn(4, 3, 4, generator=generator) for _ in range(2))
    runs = [run_of([0], length, table) for table, length in zip(tables, lengths, strict=True)]

    together = step_of(pool, *runs).attend(0, query, keys, values, scaling=0.5)
    alone = [
        step_of(pool, run).attend(
            0, query[i : i + 1], keys[i : i + 1], values[i : i + 1], scaling=0.5
        )
        for i, run in enumerate(runs)
    ]

    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give memory when it is used")
def test_memory_is_there_before_it_is_used_and_what_is_written_meanwhile_stays():
    rows = zeroed((3, 5 << 20), torch.float32)
    process = psutil.Process()
    before = process.memory_info().rss

    calm = threading.Event()
    touching = touch(rows, calm)
    assert touching is not None
    rows[:, :7] = 1.0
    at_first = process.memory_info().rss - before
    calm.set()
    touching.join()

    assert at_first < 0.5 * rows.nbytes
    assert process.memory_info().rss - before > 0.9 * rows.nbytes
    assert bool((rows[:, :7] == 1.0).all())
    assert not rows[:, 7:].any()
