"""Attention over the pool in torch products: on every device, for every model that is served.

The query heads that share a KV head are folded into rows, so that KV heads are the batch and no
key is repeated. Two forms, each where it was measured to be faster (2 cores, bfloat16): single rows
go through `scaled_dot_product_attention`; many rows through two plain products with a softmax
between them, 1.7 to 1.9 times as fast at 49 rows or more. A causal mask is always our own:
`is_causal` aligns at the top left, which is wrong where the keys start before the rows do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  the name that the field knows
from numpy.typing import NDArray

from engine.model.pool import Pool, slots_of
from engine.step import Run

# Rows per product: keys beyond a chunk's last row are never multiplied.
ROW_CHUNK = 256

_Rows = slice | torch.Tensor
_Tables = list[tuple[int, NDArray[np.int64]]]


class TorchAttention:
    """Reads neighbouring slots where they lie; without `uses_views` always a copy.

    Products then see the same memory layout wherever the blocks are.
    """

    name = "torch"

    def __init__(self, pool: Pool, *, uses_views: bool = True) -> None:
        self._pool = pool
        self._uses_views = uses_views

    def over(self, runs: Sequence[Run]) -> "_Step":
        return _Step(self._pool, runs, uses_views=self._uses_views)


@dataclass(frozen=True, slots=True)
class _Many:
    """A run of several rows: `[start, end)` of the packed rows over its sequence's slots."""

    start: int
    end: int
    slots: _Rows


@dataclass(frozen=True, slots=True)
class _Single:
    """Runs of one row each, of similar length: packed rows over [batch, tokens] padded slots."""

    rows: torch.Tensor
    slots: _Rows
    shape: tuple[int, int]
    bias: torch.Tensor | None


class _Step:
    """The runs of one step, in tables of slots."""

    def __init__(self, pool: Pool, runs: Sequence[Run], *, uses_views: bool) -> None:
        self._pool = pool
        self._uses_views = uses_views
        spans = pairwise(accumulate((len(run.token_ids) for run in runs), initial=0))
        tables = (slots_of(run, pool.block_tokens) for run in runs)
        self._many: list[_Many] = []
        self._singles: _Tables = []
        for (start, end), table in zip(spans, tables, strict=True):
            if end - start == 1:
                self._singles.append((start, table))
            else:
                self._many.append(_Many(start, end, self._rows(table)))
        # A layer may have a window where its neighbour has none.
        self._grouped: dict[int | None, list[_Single]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        out = torch.empty_like(query)
        for many in self._many:
            rows = query[many.start : many.end]
            out[many.start : many.end] = attend_many(
                rows, keys[many.slots], values[many.slots], scaling, window=window
            )
        for single in self._groups(window):
            out[single.rows] = attend_single(
                query[single.rows],
                keys[single.slots].view(*single.shape, *keys.shape[1:]),
                values[single.slots].view(*single.shape, *values.shape[1:]),
                bias=single.bias,
                scaling=scaling,
            )
        return out

    def _groups(self, window: int | None) -> list[_Single]:
        if window not in self._grouped:
            seen = [(row, table[-(window or 0) :]) for row, table in self._singles]
            self._grouped[window] = [self._single(group) for group in _similar(seen)]
        return self._grouped[window]

    def _single(self, group: _Tables) -> _Single:
        rows = self._index(np.array([row for row, _ in group], dtype=np.int64))
        tables = [table for _, table in group]
        longest = max(map(len, tables))
        if len(tables) == 1:
            return _Single(rows, self._rows(tables[0]), (1, longest), None)
        # Padding reads the sequence's own first slot: finite, and its weight is exactly zero.
        padded = np.stack([_pad(table, longest) for table in tables])
        lengths = np.array([[len(table)] for table in tables])
        hidden = torch.from_numpy(np.arange(longest) >= lengths).to(self._pool.device)
        bias = torch.zeros(hidden.shape, dtype=self._pool.dtype, device=hidden.device)
        bias.masked_fill_(hidden, -torch.inf)
        return _Single(rows, self._index(padded.ravel()), (len(tables), longest), bias)

    def _rows(self, slots: NDArray[np.int64]) -> _Rows:
        """Rows of the pool: a view where the slots are neighbours, else an index."""
        first, last = int(slots[0]), int(slots[-1])
        if (
            self._uses_views
            and last - first == len(slots) - 1
            and bool((np.diff(slots) == 1).all())
        ):
            return slice(first, last + 1)
        return self._index(slots)

    def _index(self, slots: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._pool.device)


def attend_many(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    *,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of the last `rows` of `tokens` positions, one sequence.

    Args:
        query: [rows, query heads, head size].
        keys: [tokens, KV heads, head size]; row i sees keys `[0, tokens - rows + i]`.
        values: as keys.
        scaling: what products are multiplied with before the softmax.
        window: how many of those keys a row sees, the last ones; None: all.

    Returns:
        [rows, query heads, head size].
    """
    rows, tokens = query.shape[0], keys.shape[0]
    out = torch.empty_like(query)
    keys = keys.permute(1, 2, 0)  # [kv heads, head size, tokens]
    values = values.transpose(0, 1)  # [kv heads, tokens, head size]
    for start in range(0, rows, ROW_CHUNK):
        end = min(start + ROW_CHUNK, rows)
        seen = slice(0, tokens - rows + end)
        if window is not None:
            seen = slice(max(0, tokens - rows + start + 1 - window), seen.stop)
        chunk = query[start:end] * scaling
        out[start:end] = _attend_chunk(chunk, keys[..., seen], values[:, seen], window)
    return out


def _attend_chunk(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> torch.Tensor:
    rows, query_heads, size = query.shape
    kv_heads, _, tokens = keys.shape
    group = query_heads // kv_heads
    # [kv heads, group * rows, head size]
    folded = query.view(rows, kv_heads, group, size).permute(1, 2, 0, 3)
    scores = folded.reshape(kv_heads, group * rows, size) @ keys
    unfolded = scores.view(kv_heads, group, rows, tokens)
    ahead = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu_(1)
    unfolded[..., tokens - rows :].masked_fill_(ahead, -torch.inf)
    if window is not None:
        behind = torch.ones(rows, tokens, dtype=torch.bool, device=query.device)
        unfolded.masked_fill_(behind.tril_(tokens - rows - window), -torch.inf)
    # torch keeps float32 inside a bfloat16 softmax; asking for a float32 result is 3x slower.
    mixed = scores.softmax(-1) @ values
    return mixed.view(kv_heads, group, rows, size).permute(2, 0, 1, 3).reshape(query.shape)


def attend_single(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """One row each of a batch of sequences over all their keys.

    Args:
        query: [batch, query heads, head size].
        keys: [batch, tokens, KV heads, head size].
        values: as keys.
        bias: [batch, tokens], 0 where a key is seen and -inf at padding, which must hold finite
            numbers; None where nothing is padded.
        scaling: what products are multiplied with before the softmax.

    Returns:
        [batch, query heads, head size].
    """
    batch, query_heads, size = query.shape
    kv_heads = keys.shape[2]
    folded = query.view(batch, kv_heads, query_heads // kv_heads, size)
    mixed = F.scaled_dot_product_attention(
        folded,
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if bias is None else bias[:, None, None],
        scale=scaling,
    )
    return mixed.reshape(batch, query_heads, size)


def _similar(singles: Iterable[tuple[int, NDArray[np.int64]]]) -> Iterator[_Tables]:
    """Groups in which the longest table is at most twice the shortest, so padding stays cheap."""
    group: _Tables = []
    for single in sorted(singles, key=lambda single: len(single[1])):
        if group and len(single[1]) > 2 * len(group[0][1]):
            yield group
            group = []
        group.append(single)
    if group:
        yield group


def _pad(table: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    return np.concatenate([table, np.full(tokens - len(table), table[0])])
