"""Attention over a pool, whoever computes it, against a float64 reference written down plainly.

One contract for torch and for the native kernels: block tables in any order, grouped heads, runs of
one row and of many, fresh and behind a history, all in one step; every other slot is poison.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from engine.model.native.library import library
from engine.model.native.passes import Reader
from engine.model.paged import PagedStep
from engine.model.pool import KVShape, Pool
from tests.kit.model import model_cache, run_of

KERNELS = ("torch", "native")
SCALING = 0.11
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass
class Kept:
    """Keys and values of one sequence, of which the last `rows` are new."""

    rows: int
    keys: torch.Tensor
    values: torch.Tensor
    table: list[int]

    @property
    def start(self) -> int:
        return len(self.keys) - self.rows


class Case:
    """Sequences in a poisoned pool, their blocks shuffled or in order."""

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        *,
        heads: tuple[int, int] = (9, 3),
        head_size: int = 64,
        block_tokens: int = 16,
        dtype: torch.dtype = torch.float32,
        order: int | None = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, head_size, generator=generator).to(dtype)

        counts = [-(-(start + rows) // block_tokens) for start, rows in sizes]
        blocks = list(range(sum(counts) + 3))
        if order is not None:
            random.Random(order).shuffle(blocks)  # noqa: S311
        shape = KVShape(
            layers=2, kv_heads=heads[1], head_size=head_size, dtype_bytes=dtype.itemsize
        )
        self.pool = Pool(
            shape,
            blocks=len(blocks),
            block_tokens=block_tokens,
            dtype=dtype,
            device=torch.device("cpu"),
            poison=True,
        )
        self.heads, self.dtype = heads[0], dtype
        self.sequences = []
        for (start, rows), count in zip(sizes, counts, strict=True):
            table, blocks = blocks[:count], blocks[count:]
            tokens = start + rows
            keys, values = draw(tokens, heads[1]), draw(tokens, heads[1])
            self.sequences.append(Kept(rows, keys, values, table))
        self.query = draw(sum(rows for _, rows in sizes), heads[0])
        self._write_histories()

    def attend(self, kernels: str, *, threads: int = 2) -> torch.Tensor:
        """The rows of all sequences in one step."""
        return self._attend(kernels, threads, self.sequences, self.query)

    def attend_alone(self, kernels: str) -> torch.Tensor:
        """The same, each sequence in a step of its own."""
        out, row = [], 0
        for sequence in self.sequences:
            query = self.query[row : row + sequence.rows]
            out.append(self._attend(kernels, 1, [sequence], query))
            row += sequence.rows
        return torch.cat(out)

    def expected(self) -> torch.Tensor:
        out, row = [], 0
        for sequence in self.sequences:
            query = self.query[row : row + sequence.rows].double()
            group = self.heads // sequence.keys.shape[1]
            keys = sequence.keys.double().repeat_interleave(group, 1)
            values = sequence.values.double().repeat_interleave(group, 1)
            scores = torch.einsum("rhd,thd->hrt", query, keys) * SCALING
            seen = torch.arange(len(keys)) <= sequence.start + torch.arange(len(query))[:, None]
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out.append(torch.einsum("hrt,thd->rhd", weights, values))
            row += sequence.rows
        return torch.cat(out)

    def _attend(
        self, kernels: str, threads: int, sequences: Sequence[Kept], query: torch.Tensor
    ) -> torch.Tensor:
        runs = [run_of(range(one.rows), one.start, one.table) for one in sequences]
        reader = None
        if kernels == "native":
            reader = Reader(library(model_cache()), self.pool, self.heads, threads)
        step = PagedStep(self.pool, runs, self.dtype, reader=reader)
        keys = torch.cat([one.keys[one.start :] for one in sequences])
        values = torch.cat([one.values[one.start :] for one in sequences])
        return step.attend(1, query, keys, values, scaling=SCALING)

    def _write_histories(self) -> None:
        block_tokens = self.pool.block_tokens
        for one in self.sequences:
            slots = [
                one.table[position // block_tokens] * block_tokens + position % block_tokens
                for position in range(one.start)
            ]
            self.pool.keys(1)[slots] = one.keys[: one.start]
            self.pool.values(1)[slots] = one.values[: one.start]


RAGGED = [(0, 1), (299, 1), (200, 49), (0, 70), (16, 1), (511, 1), (3, 2), (127, 130), (512, 1)]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_07_a_ragged_step_equals_the_reference_and_meets_no_poison(kernels, dtype):
    case = Case(RAGGED, dtype=dtype)

    out = case.attend(kernels)

    torch.testing.assert_close(out.double(), case.expected(), atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (8, 1), (10, 2), (14, 2)])
def test_heads_are_grouped_in_their_order(kernels, dtype, heads):
    case = Case([(30, 1), (30, 9), (0, 40)], heads=heads, dtype=dtype)

    out = case.attend(kernels)

    torch.testing.assert_close(out.double(), case.expected(), atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_tokens", [1, 5, 16, 64])
def test_blocks_of_any_size_and_wide_heads_are_read(kernels, dtype, block_tokens):
    case = Case([(0, 33), (70, 1), (41, 12)], head_size=128, block_tokens=block_tokens, dtype=dtype)

    out = case.attend(kernels)

    torch.testing.assert_close(out.double(), case.expected(), atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("rows", [2, 11, 12, 13, 127, 128, 129, 257])
@pytest.mark.parametrize("start", [0, 1, 15, 100])
def test_a_turn_sees_its_history_and_itself_at_any_seam(rows, start):
    case = Case([(start, rows)], heads=(3, 1))

    out = case.attend("native")

    torch.testing.assert_close(out.double(), case.expected(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("position", [0, 1, 15, 16, 255, 256, 257, 511, 512, 767, 1300])
def test_one_token_sees_all_before_it_at_any_seam(position):
    case = Case([(position, 1)], heads=(6, 2))

    out = case.attend("native")

    torch.testing.assert_close(out.double(), case.expected(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_07_the_native_kernels_give_the_same_bits_wherever_the_blocks_lie(dtype):
    scattered, straight = (Case(RAGGED, dtype=dtype, order=order) for order in (0, None))

    assert torch.equal(scattered.attend("native"), straight.attend("native"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_06_the_native_kernels_give_the_same_bits_in_any_company_on_any_threads(dtype):
    case = Case(RAGGED, dtype=dtype)

    assert torch.equal(case.attend("native", threads=3), case.attend_alone("native"))


@pytest.mark.parametrize("kernels", KERNELS)
def test_scores_of_any_size_are_weighed_without_overflow(kernels):
    case = Case([(60, 5), (60, 1)], heads=(2, 1))
    case.query *= 1e3

    out = case.attend(kernels)

    torch.testing.assert_close(out.double(), case.expected(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("rows", [1, 40])
def test_07_a_key_that_was_never_written_is_seen_in_the_result(kernels, rows):
    case = Case([(40, rows)], heads=(2, 1))
    case.pool.keys(1)[case.sequences[0].table[0] * 16] = float("nan")

    assert bool(case.attend(kernels).isnan().all())
