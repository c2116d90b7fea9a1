"""Steps through the native kernels: a plan's runs as arrays, and what is computed over one pool.

Owns that translation and the threads that the kernels bring. It refuses to know weights and which
models the kernels fit (`engine/model/native/decoder.py`).
"""

import ctypes
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
import torch

from engine.model.native.library import Library, ModelFields, RunFields, StepFields, Unavailable
from engine.model.pool import Pool
from engine.step import Run

_HEAD_STEP = 64
_MOST_GROUP = 16


def check_heads(group: int, head_size: int) -> None:
    """Raise `Unavailable` for heads that the attention kernels do not know."""
    if head_size % _HEAD_STEP:
        raise Unavailable(f"they know head sizes that are multiples of {_HEAD_STEP} only")
    if group > _MOST_GROUP:
        raise Unavailable(f"they know at most {_MOST_GROUP} query heads over a KV head")


class Passes:
    """Forward passes over one pool. Not thread-safe; brings threads of its own."""

    def __init__(
        self, library: Library, pool: Pool, model: ModelFields, threads: int, *, weights: object
    ) -> None:
        self._library, self._pool = library, pool
        self._pointed_at = model, weights
        self._vocabulary = model.vocabulary
        item_bytes = pool.keys(0).element_size()
        self._opened = library.open(ctypes.byref(model), item_bytes, threads)
        weakref.finalize(self, library.close, self._opened)

    def logits(self, runs: Sequence[Run], rows: Sequence[int]) -> torch.Tensor:
        """Write the KV of all runs; float32 logits [len(rows), vocabulary], `rows` ascending.

        A run's logits and KV depend on nothing but the run, whatever stands beside it; with groups
        also on whether the rows of all runs are few, within what rounding weights to bfloat16 costs.
        """
        arrays = _Arrays(
            runs, self._pool.block_tokens, chain.from_iterable(run.token_ids for run in runs), rows
        )
        token_ids, draw_rows = arrays.others
        logits = torch.empty((len(rows), self._vocabulary), dtype=torch.float32)
        step = StepFields(arrays.fields, token_ids, draw_rows, logits.data_ptr(), len(rows))
        self._library.run(self._opened, ctypes.byref(step))
        return logits


class Reader:
    """Attention over one pool, for models whose other layers stay the stock modules'.

    It serves where no window is shorter than the context, so windows are not looked at.
    """

    name = "native kernels (attention)"

    def __init__(self, library: Library, pool: Pool, query_heads: int, threads: int) -> None:
        """Raises `Unavailable` where the kernels do not know such heads."""
        shape = pool.shape
        check_heads(query_heads // shape.kv_heads, shape.head_size)
        if pool.device.type != "cpu":
            raise Unavailable("they run on a CPU only")
        self._library, self._pool = library, pool
        sizes = (pool.block_tokens, query_heads, shape.kv_heads, shape.head_size)
        self._opened = library.open_reader(*sizes, shape.dtype_bytes, threads)
        weakref.finalize(self, library.close_reader, self._opened)

    def over(self, runs: Sequence[Run]) -> "_Reads":
        return _Reads(self._read, self._pool, runs)

    def _read(self, *words: object) -> None:
        self._library.read(self._opened, *words)


class _Reads:
    """One step's runs, as arrays that all layers share."""

    def __init__(self, read: Callable[..., None], pool: Pool, runs: Sequence[Run]) -> None:
        self._read, self._pool = read, pool
        self._arrays = _Arrays(runs, pool.block_tokens)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scaling: float,
        window: int | None,  # noqa: ARG002  as all backends are asked
    ) -> torch.Tensor:
        query = (query * (scaling * math.log2(math.e))).contiguous()
        out = torch.empty_like(query)
        self._read(
            ctypes.byref(self._arrays.fields),
            self._pool.keys(layer).data_ptr(),
            self._pool.values(layer).data_ptr(),
            query.data_ptr(),
            out.data_ptr(),
        )
        return out


class _Arrays:
    """A step's runs as one array of words, and where in it each part begins."""

    def __init__(self, runs: Sequence[Run], block_tokens: int, *others: Iterable[int]) -> None:
        ends, table_starts = [], []
        rows = blocks = 0
        tables = []
        for run in runs:
            rows += len(run.token_ids)
            ends.append(rows)
            table_starts.append(blocks)
            used = -(-(run.start + len(run.token_ids)) // block_tokens)
            tables.append(run.block_table[:used])
            blocks += used
        firsts = [run.start for run in runs]
        parts = (ends, firsts, table_starts, chain.from_iterable(tables), *others)
        words: list[int] = []
        starts = []
        for part in parts:
            starts.append(len(words))
            words.extend(part)
        self._words = np.array(words, dtype=np.int32)
        address = self._words.ctypes.data
        pointers = [address + start * self._words.itemsize for start in starts]
        self.fields = RunFields(*pointers[:4], len(ends))
        self.others = pointers[4:]
