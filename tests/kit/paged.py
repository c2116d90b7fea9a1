"""The contract of attention over the pool, as cases: whoever computes it is asked all of them.

Block tables in any order, grouped heads, runs of one row and of many, fresh and behind a history,
with and without a window, all in one step; every slot that no sequence uses is poison. The
reference is float64 and written down in the plainest way.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine.model.paged import PagedStep
from engine.model.pool import POISON, KVShape, Pool, kept
from engine.model.reading import Attention, Part
from engine.step import Run
from tests.kit.model import run_of

SCALING = 0.11
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
CPU = torch.device("cpu")

MakeAttention = Callable[[Pool, int], Attention]
"""A backend over a pool, for so many query heads."""


@dataclass(frozen=True)
class Sizes:
    """What a case is about: (history, new rows) of each sequence, heads and a window."""

    runs: Sequence[tuple[int, int]]
    heads: tuple[int, int] = (9, 3)
    head_size: int = 64
    window: int | None = None
    shared: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Of a sequence: the earlier one that it begins like, and with how many tokens."""


RAGGED = [(0, 1), (299, 1), (200, 49), (0, 70), (16, 1), (511, 1), (3, 2), (127, 130), (512, 1)]

CASES: Mapping[str, Sizes] = {
    "one token and nothing before it": Sizes([(0, 1)]),
    "one token behind a history": Sizes([(300, 1)]),
    "several of one token": Sizes([(0, 1), (15, 1), (16, 1), (17, 1), (700, 1)]),
    "a fresh prompt": Sizes([(0, 300)]),
    "a turn behind its history": Sizes([(200, 49)]),
    "a turn that begins inside a block": Sizes([(13, 5)]),
    "a turn of one block": Sizes([(16, 16)]),
    "ragged": Sizes(RAGGED),
    "one head": Sizes([(30, 1), (30, 9), (0, 40)], heads=(1, 1)),
    "heads of their own": Sizes([(30, 1), (30, 9), (0, 40)], heads=(4, 4)),
    "one KV head": Sizes([(30, 1), (30, 9), (0, 40)], heads=(8, 1)),
    "groups of five": Sizes([(30, 1), (30, 9), (0, 40)], heads=(10, 2)),
    "groups of seven": Sizes([(30, 1), (30, 9), (0, 40)], heads=(14, 2)),
    "wide heads": Sizes([(0, 33), (70, 1), (41, 12)], head_size=128),
}

SHARED: Mapping[str, Sizes] = {
    "two behind one prefix": Sizes([(520, 1), (700, 1)], shared={1: (0, 512)}),
    "all behind one prefix": Sizes(
        [(513, 1), (512, 1), (512, 3), (1100, 1)], shared=dict.fromkeys((1, 2, 3), (0, 512))
    ),
    "a prefix that is all there was": Sizes([(512, 1), (512, 1)], shared={1: (0, 512)}),
    "two prefixes, taking turns": Sizes(
        [(900, 1), (600, 1), (800, 2), (530, 1)], shared={2: (0, 768), 3: (1, 512)}
    ),
    "some who share nothing": Sizes(
        [(40, 1), (600, 1), (0, 30), (800, 1), (300, 7)], shared={3: (1, 512)}
    ),
    "a longer one inside": Sizes(
        [(520, 1), (1300, 1), (1301, 1), (1290, 5)],
        shared={1: (0, 512), 2: (1, 1280), 3: (1, 1280)},
    ),
    "one KV head behind a prefix": Sizes([(600, 1), (520, 4)], heads=(8, 1), shared={1: (0, 512)}),
    "wide heads behind a prefix": Sizes(
        [(600, 1), (520, 4)], heads=(4, 2), head_size=128, shared={1: (0, 512)}
    ),
}

WINDOWED: Mapping[str, Sizes] = {
    "a window of one": Sizes([(40, 1), (40, 9)], window=1),
    "a window inside a block": Sizes([(100, 1), (0, 40), (50, 20)], window=7),
    "a window over blocks": Sizes(RAGGED, window=100),
    "a window as long as the history": Sizes([(0, 64), (63, 1), (64, 1)], window=64),
    "a window that is never full": Sizes([(30, 1), (0, 20)], window=4096),
    "a window over row chunks": Sizes([(100, 600)], window=90),
}


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

    def begin_like(self, other: "Kept", blocks: int, block_tokens: int) -> None:
        """Have its first blocks in common with another sequence."""
        tokens = blocks * block_tokens
        self.table[:blocks] = other.table[:blocks]
        self.keys[:tokens], self.values[:tokens] = other.keys[:tokens], other.values[:tokens]


class Case:
    """Sequences in a poisoned pool, their blocks shuffled, or in order without an `order`.

    Without `poisons_tails` the values behind a sequence, in its last block, are numbers: kernels that
    load whole pages multiply what lies there by zero. With a `kv_dtype` keys and values are numbers
    of it, so that nothing is rounded when they are written.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        block_tokens: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        kv_dtype: torch.dtype | None = None,
        order: int | None = 0,
        poisons_tails: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        kv_dtype = kv_dtype or dtype

        def draw(*shape: int) -> torch.Tensor:
            numbers = torch.randn(*shape, sizes.head_size, generator=generator)
            return numbers.to(device, dtype)

        def drawn_kv(*shape: int) -> torch.Tensor:
            return kept(draw(*shape), kv_dtype).to(dtype)

        heads, kv_heads = sizes.heads
        counts = [-(-(start + rows) // block_tokens) for start, rows in sizes.runs]
        blocks = list(range(sum(counts) + 3))
        if order is not None:
            random.Random(order).shuffle(blocks)  # noqa: S311
        shape = KVShape(
            layers=2, kv_heads=kv_heads, head_size=sizes.head_size, dtype_bytes=kv_dtype.itemsize
        )
        self.pool = Pool(
            shape,
            blocks=len(blocks),
            block_tokens=block_tokens,
            dtype=kv_dtype,
            device=device,
            empty=POISON,
        )
        self.heads, self.window = heads, sizes.window
        self.sequences: list[Kept] = []
        for at, ((start, rows), count) in enumerate(zip(sizes.runs, counts, strict=True)):
            table, blocks = blocks[:count], blocks[count:]
            tokens = start + rows
            keys, values = drawn_kv(tokens, kv_heads), drawn_kv(tokens, kv_heads)
            self.sequences.append(Kept(rows, keys, values, table))
            if at in sizes.shared:
                first, shared = sizes.shared[at]
                like = self.sequences[first]
                self.sequences[at].begin_like(like, shared // block_tokens, block_tokens)
        self.query = draw(sum(rows for _, rows in sizes.runs), heads)
        if not poisons_tails:
            self.pool.value_blocks(1)[[one.table[-1] for one in self.sequences]] = 0
        self._write_histories()

    @property
    def runs(self) -> list[Run]:
        return [run_of(range(one.rows), one.start, one.table) for one in self.sequences]

    def attend(self, make: MakeAttention) -> torch.Tensor:
        """The rows of all sequences in one step."""
        return self._attend(make, self.runs, self.sequences, self.query)

    def attend_alone(self, make: MakeAttention) -> torch.Tensor:
        """The same, each sequence in a step of its own."""
        out, row = [], 0
        for run, sequence in zip(self.runs, self.sequences, strict=True):
            query = self.query[row : row + sequence.rows]
            out.append(self._attend(make, [run], [sequence], query))
            row += sequence.rows
        return torch.cat(out)

    def expected(self) -> torch.Tensor:
        """What all rows come to, in float64."""
        out, row = [], 0
        for one in self.sequences:
            query = self.query[row : row + one.rows]
            out.append(reference(query, one.keys, one.values, SCALING, window=self.window))
            row += one.rows
        return torch.cat(out)

    def assert_equal(self, out: torch.Tensor) -> None:
        """`out` equals the reference but for rounding in its dtype, and met no poison."""
        close = CLOSE[self.query.dtype]
        torch.testing.assert_close(out.double(), self.expected(), atol=close, rtol=close)

    def _attend(
        self,
        make: MakeAttention,
        runs: Sequence[Run],
        sequences: Sequence[Kept],
        query: torch.Tensor,
    ) -> torch.Tensor:
        step = PagedStep(self.pool, runs, make(self.pool, self.heads))
        keys = torch.cat([one.keys[one.start :] for one in sequences])
        values = torch.cat([one.values[one.start :] for one in sequences])
        return step.attend(1, query, keys, values, scaling=SCALING, window=self.window)

    def _write_histories(self) -> None:
        block_tokens = self.pool.block_tokens
        for one in self.sequences:
            slots = [
                one.table[position // block_tokens] * block_tokens + position % block_tokens
                for position in range(one.start)
            ]
            written = torch.tensor(slots, dtype=torch.int64, device=self.pool.device)
            self.pool.put(1, written, one.keys[: one.start], one.values[: one.start])


def reference(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    *,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of the last rows of one sequence, in float64.

    `query` is [rows, query heads, head size], `keys` and `values` [tokens, KV heads, head size]; a
    row sees the last `window` positions up to its own, all of them where that is None.
    """
    return reference_part(query, keys, values, scaling, window=window).out


def reference_part(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    *,
    window: int | None = None,
    is_causal: bool = True,
) -> Part:
    """The same and the log-sum-exp of the scores, [rows, query heads]; or each row sees all keys."""
    group = query.shape[1] // keys.shape[1]
    keys = keys.double().repeat_interleave(group, 1)
    values = values.double().repeat_interleave(group, 1)
    scores = torch.einsum("rhd,thd->hrt", query.double(), keys) * scaling
    if is_causal:
        positions = torch.arange(len(keys), device=query.device)
        own = positions[len(keys) - len(query) :, None]
        hidden = positions > own
        if window is not None:
            hidden |= positions <= own - window
        scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("hrt,thd->rhd", scores.softmax(-1), values)
    return Part(out, scores.logsumexp(-1).T)


def paged_reference(
    query: torch.Tensor,
    key_blocks: torch.Tensor,
    value_blocks: torch.Tensor,
    *,
    row_starts: torch.Tensor,
    tokens: torch.Tensor,
    tables: torch.Tensor,
    scaling: float,
    window: int | None,
    is_causal: bool,
) -> Part:
    """The same of several sequences in blocks: [blocks, block tokens, KV heads, head size]."""
    found = []
    for run, table in enumerate(tables.long()):
        rows = query[int(row_starts[run]) : int(row_starts[run + 1])]
        keys, values = (
            blocks[table].flatten(0, 1)[: int(tokens[run])] for blocks in (key_blocks, value_blocks)
        )
        found.append(
            reference_part(rows, keys, values, scaling, window=window, is_causal=is_causal)
        )
    return Part(*map(torch.cat, zip(*found, strict=True)))
