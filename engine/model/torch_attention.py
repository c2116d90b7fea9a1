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

from engine.model.memory import sent
from engine.model.pool import Pool
from engine.model.reading import Part, Reading, readings_of
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
        return self.causal(readings_of(runs, self._pool.block_tokens))

    def causal(self, readings: Sequence[Reading]) -> "_Step":
        return _Step(self._pool, readings, uses_views=self._uses_views, is_causal=True)

    def full(self, readings: Sequence[Reading]) -> "_Step":
        return _Step(self._pool, readings, uses_views=self._uses_views, is_causal=False)


@dataclass(frozen=True, slots=True)
class _Many:
    """A reading of several rows: `[start, end)` of the packed rows over its sequence's slots."""

    start: int
    end: int
    slots: _Rows


@dataclass(frozen=True, slots=True)
class _Single:
    """Readings of one row, of similar length: packed rows over [batch, tokens] padded slots."""

    rows: torch.Tensor
    slots: _Rows
    shape: tuple[int, int]
    bias: torch.Tensor | None


class _Step:
    """The readings of one step, in tables of slots."""

    def __init__(
        self, pool: Pool, readings: Sequence[Reading], *, uses_views: bool, is_causal: bool
    ) -> None:
        self._pool = pool
        self._uses_views, self._is_causal = uses_views, is_causal
        spans = pairwise(accumulate((reading.rows for reading in readings), initial=0))
        self._many: list[_Many] = []
        self._singles: _Tables = []
        for (start, end), reading in zip(spans, readings, strict=True):
            table = reading.slots(pool.block_tokens)
            if end - start == 1:
                self._singles.append((start, table))
            else:
                self._many.append(_Many(start, end, self._rows(table)))
        # A layer may have a window where its neighbour has none.
        self._grouped: dict[int | None, list[_Single]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        for many in self._many:
            rows = query[many.start : many.end]
            keys, values = self._kv(layer, many.slots, query.dtype)
            out[many.start : many.end] = attend_many(rows, keys, values, scaling, window=window)
        for single in self._groups(window, query.dtype):
            keys, values = self._kv(layer, single.slots, query.dtype)
            out[single.rows] = attend_single(
                query[single.rows],
                keys.view(*single.shape, *keys.shape[1:]),
                values.view(*single.shape, *values.shape[1:]),
                bias=single.bias,
                scaling=scaling,
            )
        return out

    def attend_apart(self, layer: int, query: torch.Tensor, scaling: float) -> Part:
        out = torch.empty_like(query)
        weight = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        for many in self._many:
            rows = slice(many.start, many.end)
            keys, values = self._kv(layer, many.slots, query.dtype)
            out[rows], weight[rows] = part_of_many(
                query[rows], keys, values, scaling, is_causal=self._is_causal
            )
        for single in self._groups(None, query.dtype):
            keys, values = self._kv(layer, single.slots, query.dtype)
            out[single.rows], weight[single.rows] = part_of_single(
                query[single.rows],
                keys.view(*single.shape, *keys.shape[1:]),
                values.view(*single.shape, *values.shape[1:]),
                bias=single.bias,
                scaling=scaling,
            )
        return Part(out, weight)

    def _kv(
        self, layer: int, slots: _Rows, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [tokens, kv heads, head size] as rows are computed."""
        keys, values = self._pool.keys(layer)[slots], self._pool.values(layer)[slots]
        return keys.to(dtype), values.to(dtype)

    def _groups(self, window: int | None, dtype: torch.dtype) -> list[_Single]:
        if window not in self._grouped:
            seen = [(row, table[-(window or 0) :]) for row, table in self._singles]
            self._grouped[window] = [self._single(group, dtype) for group in _similar(seen)]
        return self._grouped[window]

    def _single(self, group: _Tables, dtype: torch.dtype) -> _Single:
        rows = self._index(np.array([row for row, _ in group], dtype=np.int64))
        tables = [table for _, table in group]
        longest = max(map(len, tables))
        if len(tables) == 1:
            return _Single(rows, self._rows(tables[0]), (1, longest), None)
        # Padding reads the sequence's own first slot: finite, and its weight is exactly zero.
        padded = np.stack([_pad(table, longest) for table in tables])
        lengths = np.array([[len(table)] for table in tables])
        hidden = sent(np.arange(longest) >= lengths, self._pool.device)
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
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
        return sent(slots, self._pool.device)


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
    for start, end in _row_chunks(rows):
        seen = slice(0, tokens - rows + end)
        if window is not None:
            seen = slice(max(0, tokens - rows + start + 1 - window), seen.stop)
        chunk = query[start:end]
        scores = _scores(chunk, keys[..., seen], scaling)
        _hide(scores, end - start, window)
        out[start:end] = _mix(scores, values[:, seen], chunk)
    return out


def part_of_many(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    *,
    is_causal: bool,
) -> Part:
    """As `attend_many` without a window, and what the keys weigh; or each row sees them all."""
    rows, tokens = query.shape[0], keys.shape[0]
    out = torch.empty_like(query)
    weight = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    keys = keys.permute(1, 2, 0)  # [kv heads, head size, tokens]
    values = values.transpose(0, 1)  # [kv heads, tokens, head size]
    for start, end in _row_chunks(rows):
        seen = slice(0, tokens - rows + end if is_causal else tokens)
        chunk = query[start:end]
        scores = _scores(chunk, keys[..., seen], scaling)
        if is_causal:
            _hide(scores, end - start, None)
        out[start:end] = _mix(scores, values[:, seen], chunk)
        # [kv heads, group * rows], in the order of the folded rows
        weight[start:end] = _unfolded(scores.float().logsumexp(-1)[..., None], chunk)[..., 0]
    return Part(out, weight)


def _row_chunks(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, ROW_CHUNK):
        yield start, min(start + ROW_CHUNK, rows)


def _scores(query: torch.Tensor, keys: torch.Tensor, scaling: float) -> torch.Tensor:
    """[kv heads, group * rows, tokens]: the heads that share a KV head are folded into rows."""
    rows, query_heads, size = query.shape
    kv_heads = keys.shape[0]
    group = query_heads // kv_heads
    folded = (query * scaling).view(rows, kv_heads, group, size).permute(1, 2, 0, 3)
    return folded.reshape(kv_heads, group * rows, size) @ keys


def _unfolded(folded: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """[rows, query heads, ...] of what is [kv heads, group * rows, ...], as `query` has them."""
    rows, query_heads = query.shape[:2]
    kv_heads, size = folded.shape[0], folded.shape[-1]
    apart = folded.view(kv_heads, query_heads // kv_heads, rows, size)
    return apart.permute(2, 0, 1, 3).reshape(rows, query_heads, size)


def _hide(scores: torch.Tensor, rows: int, window: int | None) -> None:
    """Takes what a row does not see, in place: the rows are the last of the tokens."""
    kv_heads, folded, tokens = scores.shape
    apart = scores.view(kv_heads, folded // rows, rows, tokens)
    ahead = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu_(1)
    apart[..., tokens - rows :].masked_fill_(ahead, -torch.inf)
    if window is not None:
        behind = torch.ones(rows, tokens, dtype=torch.bool, device=scores.device)
        apart.masked_fill_(behind.tril_(tokens - rows - window), -torch.inf)


def _mix(scores: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    # torch keeps float32 inside a bfloat16 softmax; asking for a float32 result is 3x slower.
    return _unfolded(scores.softmax(-1) @ values, query)


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


def part_of_single(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    scaling: float,
) -> Part:
    """As `attend_single`, and what the keys weigh, which `scaled_dot_product_attention` keeps."""
    batch, query_heads, size = query.shape
    kv_heads = keys.shape[2]
    folded = (query * scaling).view(batch, kv_heads, query_heads // kv_heads, size)
    scores = folded @ keys.permute(0, 2, 3, 1)  # [batch, kv heads, group, tokens]
    if bias is not None:
        scores += bias[:, None, None]
    mixed = scores.softmax(-1) @ values.transpose(1, 2)
    weight = scores.float().logsumexp(-1)
    return Part(mixed.reshape(batch, query_heads, size), weight.reshape(batch, query_heads))


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
