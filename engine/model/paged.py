"""One step's way into the pool, handed to the stock Transformers modules as attention.

Owns the translation of a plan's runs into slots: where each new row is written and which rows each
query reads. The modules see one packed sequence [1, rows] of all runs; they call `_attention` (it
is registered under `ATTENTION`) with the new keys and values of a layer, which are written before
anything is read. It refuses to decide: the tables come from the plan.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface

from engine.errors import Misconfigured
from engine.model.attention import attend_many, attend_single
from engine.model.native.passes import Reader
from engine.model.pool import Pool
from engine.step import Run

ATTENTION = "keepwarm"

# Arguments by which a model asks for another attention than plain causal.
_UNSUPPORTED = ("softcap", "s_aux", "sliding_window", "position_bias", "head_mask")

_Rows = slice | torch.Tensor


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


class PagedStep:
    """What every layer of one forward pass needs to know about the runs of a plan.

    With `uses_views` neighbouring slots are read where they lie; without, always as a copy, so that
    products see the same memory layout wherever the blocks are. With a `reader` the native kernels
    read, and they always do where it lies.
    """

    def __init__(
        self,
        pool: Pool,
        runs: Sequence[Run],
        dtype: torch.dtype,
        *,
        uses_views: bool = True,
        reader: Reader | None = None,
    ) -> None:
        self._pool = pool
        self._dtype = dtype
        self._uses_views = uses_views
        spans = list(pairwise(accumulate((len(run.token_ids) for run in runs), initial=0)))
        tables = [_slots(run, pool.block_tokens) for run in runs]
        written = [table[run.start :] for table, run in zip(tables, runs, strict=True)]
        self._written = self._index(np.concatenate(written))
        self._reads: list[_Many | _Single] = []
        self._reader = reader
        if reader is not None:
            self._arrays = reader.arrays(runs)
            return
        singles: list[tuple[int, NDArray[np.int64]]] = []
        for (start, end), table in zip(spans, tables, strict=True):
            if end - start == 1:
                singles.append((start, table))
            else:
                self._reads.append(_Many(start, end, self._rows(table)))
        self._reads.extend(self._single(group) for group in _similar(singles))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scaling: float,
    ) -> torch.Tensor:
        """Write the new rows' keys and values, then attend; all are [rows, heads, head size]."""
        pool_keys, pool_values = self._pool.keys(layer), self._pool.values(layer)
        pool_keys[self._written] = keys
        pool_values[self._written] = values
        if self._reader is not None:
            return self._reader.attend(self._arrays, layer, query, scaling)
        out = torch.empty_like(query)
        for read in self._reads:
            read_keys, read_values = pool_keys[read.slots], pool_values[read.slots]
            if isinstance(read, _Many):
                rows = query[read.start : read.end]
                out[read.start : read.end] = attend_many(rows, read_keys, read_values, scaling)
            else:
                out[read.rows] = attend_single(
                    query[read.rows],
                    read_keys.view(*read.shape, *read_keys.shape[1:]),
                    read_values.view(*read.shape, *read_values.shape[1:]),
                    bias=read.bias,
                    scaling=scaling,
                )
        return out

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

    def _single(self, group: Sequence[tuple[int, NDArray[np.int64]]]) -> _Single:
        rows = self._index(np.array([row for row, _ in group], dtype=np.int64))
        tables = [table for _, table in group]
        longest = max(map(len, tables))
        if len(tables) == 1:
            return _Single(rows, self._rows(tables[0]), (1, longest), None)
        # Padding reads the sequence's own first slot: finite, and its weight is exactly zero.
        padded = np.stack([_pad(table, longest) for table in tables])
        lengths = np.array([[len(table)] for table in tables])
        hidden = torch.from_numpy(np.arange(longest) >= lengths).to(self._pool.device)
        bias = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device)
        bias.masked_fill_(hidden, -torch.inf)
        shape = (len(tables), longest)
        return _Single(rows, self._index(padded.ravel()), shape, bias)

    def _index(self, slots: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._pool.device)


def _slots(run: Run, block_tokens: int) -> NDArray[np.int64]:
    """The pool's slot of each position `[0, end)` of a run's sequence."""
    tokens = run.start + len(run.token_ids)
    blocks = np.asarray(run.block_table, dtype=np.int64)[: -(-tokens // block_tokens)]
    slots = blocks[:, None] * block_tokens + np.arange(block_tokens)
    return slots.ravel()[:tokens]


def _similar(
    singles: Iterable[tuple[int, NDArray[np.int64]]],
) -> Iterator[list[tuple[int, NDArray[np.int64]]]]:
    """Groups in which the longest table is at most twice the shortest, so padding stays cheap."""
    group: list[tuple[int, NDArray[np.int64]]] = []
    for single in sorted(singles, key=lambda single: len(single[1])):
        if group and len(single[1]) > 2 * len(group[0][1]):
            yield group
            group = []
        group.append(single)
    if group:
        yield group


def _pad(table: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    return np.concatenate([table, np.full(tokens - len(table), table[0])])


def _attention(  # noqa: PLR0917  Transformers passes them by position
    module: torch.nn.Module,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The signature of Transformers' attention interface; tensors are [1, heads, rows, size]."""
    asked = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if mask is not None or asked:
        raise Misconfigured(
            f"model uses attention with {', '.join(asked) or 'a mask of its own'}, which the paged "
            "cache does not compute: choose a model with plain causal attention"
        )
    step: PagedStep = options["paged"]
    out = step.attend(
        module.layer_idx,  # type: ignore[arg-type]  # every attention module counts its layer
        query[0].transpose(0, 1),
        keys[0].transpose(0, 1),
        values[0].transpose(0, 1),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
    )
    return out[None], None


AttentionInterface.register(ATTENTION, _attention)
