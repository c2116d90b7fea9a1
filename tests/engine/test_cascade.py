"""Which runs of a step share a prefix, when reading it once pays, and that it is read once."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.model.cascade import Cascade, Group, Prices, prices_of, shared_prefixes
from engine.model.pool import KVShape, Pool
from engine.model.reading import Part, Reading, merged
from engine.model.torch_attention import TorchAttention
from tests.kit.paged import SCALING, SHARED, Case, Sizes, reference, reference_part

FREE = Prices(block_tokens=16, row_tokens=0, detour_tokens=0)


def reading(*blocks: int, rows: int = 1) -> Reading:
    """Rows that come behind all of their blocks but the last."""
    tokens = 16 * (len(blocks) - 1) + rows
    return Reading(rows, tokens, np.array(blocks, dtype=np.int32))


@pytest.mark.parametrize(
    ("tables", "groups"),
    [
        ([[1, 2, 3], [4, 5, 6]], []),
        ([[1, 2, 3], [1, 2, 4]], [((0, 1), 2)]),
        # Nobody shares the block that is being written, though another be behind it.
        ([[1, 2], [1, 2, 3]], [((0, 1), 1)]),
        ([[1, 9], [2, 8], [1, 7], [2, 6], [3, 5]], [((0, 2), 1), ((1, 3), 1)]),
        # One block for four saves three, and five for two save five.
        ([[1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 8], [1, 7], [1, 6]], [((0, 1), 5)]),
        ([[1, 2, 9], [1, 2, 8], [1, 7], [1, 6], [1, 5]], [((0, 1, 2, 3, 4), 1)]),
        ([[1, 2, 3, 9], [1, 2, 3, 8], [1, 4, 5, 7], [1, 4, 5, 6]], [((0, 1), 3), ((2, 3), 3)]),
    ],
)
def test_the_groups_are_those_by_which_least_is_read(tables, groups):
    found = shared_prefixes([reading(*table) for table in tables], FREE)

    assert found == [Group(runs, blocks) for runs, blocks in groups]


def test_what_many_rows_cost_is_weighed_against_what_they_save():
    dear = Prices(block_tokens=16, row_tokens=4, detour_tokens=0)
    one, other = reading(*range(10)), reading(*range(9), 12)
    long = reading(*range(9), 13, rows=16)

    assert shared_prefixes([one, other], dear) == [Group((0, 1), 9)]
    assert shared_prefixes([one, long], dear) == [Group((0, 1), 9)]
    assert shared_prefixes([one, long, long, long, long], dear) == [Group((0, 1, 2, 3, 4), 9)]
    # Two turns of many rows: what they read together they compute with for long.
    longer = [Reading(512, 9 * 16 + 512, np.arange(41, dtype=np.int32)) for _ in range(2)]
    assert shared_prefixes(longer, dear) == []


def test_a_prefix_that_saves_less_than_the_second_step_costs_is_read_by_each():
    shape = KVShape(layers=2, kv_heads=3, head_size=64, dtype_bytes=4)
    tables = [reading(1, 2, 3), reading(1, 2, 4)]
    token_bytes = 2 * 3 * 64 * 4
    saved = 32 - 2 * 2 * 3

    def groups(detour_bytes: int) -> list[Group]:
        return shared_prefixes(tables, prices_of(shape, 16, 9, detour_bytes))

    assert groups((saved - 1) * token_bytes) == [Group((0, 1), 2)]
    assert groups(saved * token_bytes) == []


class Counting(TorchAttention):
    """Counts the positions that each step reads in each layer."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.positions = 0

    def causal(self, readings: Sequence[Reading]):
        self.positions += sum(reading.tokens for reading in readings)
        return super().causal(readings)

    def full(self, readings: Sequence[Reading]):
        self.positions += sum(reading.tokens for reading in readings)
        return super().full(readings)


def test_a_shared_prefix_is_read_once():
    case = Case(SHARED["all behind one prefix"])
    counting = Counting(case.pool)

    case.assert_equal(
        case.attend(lambda pool, heads: Cascade(counting, pool, heads, detour_bytes=0))
    )

    assert counting.positions == 512 + 2 + 1 + 3 + 589


@pytest.mark.parametrize(
    "sizes", [Sizes([(600, 1)]), Sizes([(600, 1), (700, 1)])], ids=["alone", "strangers"]
)
def test_a_step_that_shares_nothing_is_the_backends_own(sizes):
    case = Case(sizes)
    backend = TorchAttention(case.pool)

    step = Cascade(backend, case.pool, 9, detour_bytes=0).over(case.runs)

    assert type(step) is type(backend.over(case.runs))


def test_few_tokens_are_not_worth_it():
    case = Case(Sizes([(40, 1), (41, 1)], shared={1: (0, 32)}))

    step = Cascade(TorchAttention(case.pool), case.pool, 9).over(case.runs)

    assert type(step) is type(TorchAttention(case.pool).over(case.runs))


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_two_parts_are_merged_by_what_their_keys_weigh(scale):
    generator = torch.Generator().manual_seed(3)
    query, keys, values = (
        torch.randn(count, heads, 8, generator=generator)
        for count, heads in ((5, 4), (30, 2), (30, 2))
    )
    query *= scale
    early = reference_part(query, keys[:20], values[:20], SCALING, is_causal=False)
    late = reference_part(query, keys[20:], values[20:], SCALING)

    found = merged(*(Part(part.out.float(), part.weight.float()) for part in (early, late)))

    expected = reference(query, keys, values, SCALING)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)
