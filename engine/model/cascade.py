"""Attention in two steps where several runs begin with the same blocks: a cascade.

Owns which runs of a step share a prefix, whether reading that once pays, and the putting together
of what their rows see in it and behind it. Refuses to know how either is computed: a backend is
asked for both. A run that is alone in its step never meets it, so the deterministic mode does not.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.memory import sent
from engine.model.pool import KVShape, Pool
from engine.model.reading import Backend, Reading, StepAttention, merged, readings_of
from engine.step import Run

_DETOUR_BYTES = {"cpu": 1 << 20, "cuda": 50 << 20}
"""What is read in the time that a second step's own calls take, in each layer.

On a CPU measured, in torch products over 2 to 16 streams: there it breaks even. On a GPU reckoned
from five more launches of 5 us and 2 TB/s, and not measured yet.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of a step, by their number, ascending, and how many of their first blocks are the same."""

    runs: tuple[int, ...]
    blocks: int


@dataclass(frozen=True, slots=True)
class Prices:
    """What reading a prefix once saves and costs, in positions of one layer's KV."""

    block_tokens: int
    row_tokens: int
    """To write two parts of a row and to read them again, where one would be written."""
    detour_tokens: int
    """Of a step that has a shared prefix at all."""

    def gain(self, readings: Sequence[Reading], blocks: int) -> int:
        """Of reading the first `blocks` once for all."""
        saved = (len(readings) - 1) * blocks * self.block_tokens
        return saved - self.row_tokens * sum(reading.rows for reading in readings)


def prices_of(shape: KVShape, block_tokens: int, query_heads: int, detour_bytes: int) -> Prices:
    """A position of a layer is a key and a value a KV head; a part of a row, one a query head."""
    layer_token_bytes = shape.token_bytes // shape.layers
    return Prices(
        block_tokens=block_tokens,
        row_tokens=2 * query_heads // shape.kv_heads,
        detour_tokens=detour_bytes // layer_token_bytes,
    )


def shared_prefixes(readings: Sequence[Reading], prices: Prices) -> list[Group]:
    """The groups, each run in one at most, by which a step reads least; none where that is no gain.

    Only blocks that a run's rows lie behind count: the rest is being written.
    """
    firsts = {int(reading.blocks[0]) for reading in readings}
    if len(firsts) == len(readings):
        return []
    found = _Tables(readings, prices).best(range(len(readings)), 0)
    return found.groups if found.gain > prices.detour_tokens else []


class _Found(NamedTuple):
    gain: int
    groups: list[Group]


class _Tables:
    """The blocks of all readings that may be shared, as far as they agree a tree."""

    def __init__(self, readings: Sequence[Reading], prices: Prices) -> None:
        self._readings, self._prices = readings, prices
        self._tables = [one.blocks[: one.start // prices.block_tokens] for one in readings]

    def best(self, runs: Sequence[int], depth: int) -> _Found:
        """Of runs that agree in `depth` blocks: one group of all, or each branch by itself."""
        if len(runs) < 2:
            return _Found(0, [])
        first = self._tables[runs[0]]
        depth = min(_agreed(first, self._tables[run], depth) for run in runs)
        branches: dict[int, list[int]] = {}
        for run in runs:
            if len(self._tables[run]) > depth:
                branches.setdefault(int(self._tables[run][depth]), []).append(run)
        apart = [self.best(branch, depth + 1) for branch in branches.values()]
        gain = sum(found.gain for found in apart)
        together = self._prices.gain([self._readings[run] for run in runs], depth)
        if together > gain:
            return _Found(together, [Group(tuple(runs), depth)])
        return _Found(gain, [group for found in apart for group in found.groups])


def _agreed(one: NDArray[np.int32], other: NDArray[np.int32], depth: int) -> int:
    """In how many first blocks two tables agree, which agree in `depth`."""
    most = min(len(one), len(other))
    differing = np.flatnonzero(one[depth:most] != other[depth:most])
    return depth + int(differing[0]) if len(differing) else most


class Cascade:
    """A backend that reads once what several runs of a step begin with, where that pays."""

    def __init__(
        self, backend: Backend, pool: Pool, query_heads: int, *, detour_bytes: int | None = None
    ) -> None:
        """`detour_bytes`: what a second step costs in each layer; None: as on the pool's device."""
        self._backend, self._pool = backend, pool
        cost = _DETOUR_BYTES[pool.device.type] if detour_bytes is None else detour_bytes
        self._prices = prices_of(pool.shape, pool.block_tokens, query_heads, cost)
        self.name = backend.name

    def over(self, runs: Sequence[Run]) -> StepAttention:
        groups = self.groups_of(runs)
        if not groups:
            return self._backend.over(runs)
        return CascadeStep(self._backend, self._pool, runs, groups)

    def groups_of(self, runs: Sequence[Run]) -> list[Group]:
        """Those whose prefix is read once; none where that is no gain."""
        if len(runs) < 2 or len({run.block_table[0] for run in runs}) == len(runs):
            return []
        return shared_prefixes(readings_of(runs, self._pool.block_tokens), self._prices)


class CascadeStep:
    """One step's groups, each over its prefix and then each run over what follows; and the rest."""

    def __init__(
        self, backend: Backend, pool: Pool, runs: Sequence[Run], groups: Sequence[Group]
    ) -> None:
        self._backend, self._runs = backend, runs
        block_tokens = pool.block_tokens
        readings = readings_of(runs, block_tokens)
        prefixes, suffixes = [], []
        for group in groups:
            members = [readings[run] for run in group.runs]
            rows = sum(reading.rows for reading in members)
            table = members[0].blocks[: group.blocks]
            prefixes.append(Reading(rows, group.blocks * block_tokens, table))
            suffixes += [reading.behind(group.blocks, block_tokens) for reading in members]
        self._prefixes, self._suffixes = backend.full(prefixes), backend.causal(suffixes)
        ends = accumulate(reading.rows for reading in readings)
        spans = [np.arange(end - one.rows, end) for end, one in zip(ends, readings, strict=True)]
        order = list(chain.from_iterable(group.runs for group in groups))
        alone = [run for run in range(len(runs)) if run not in set(order)]
        self._rest = backend.over([runs[run] for run in alone]) if alone else None
        # None: all rows, as they come.
        is_straight = order == list(range(len(runs)))
        self._rows = None if is_straight else _index([spans[run] for run in order], pool.device)
        self._rest_rows = _index([spans[run] for run in alone], pool.device)

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        if window is not None:  # a row sees its own part of the prefix, or nothing of it
            return self._whole.attend(layer, query, scaling, window)
        mine = query if self._rows is None else query[self._rows]
        found = merged(
            self._prefixes.attend_apart(layer, mine, scaling),
            self._suffixes.attend_apart(layer, mine, scaling),
        )
        if self._rows is None:
            return found
        out = torch.empty_like(query)
        out[self._rows] = found
        if self._rest is not None:
            rest = query[self._rest_rows]
            out[self._rest_rows] = self._rest.attend(layer, rest, scaling, None)
        return out

    @functools.cached_property
    def _whole(self) -> StepAttention:
        """All runs as if nothing were shared: for layers with a window."""
        return self._backend.over(self._runs)


def _index(spans: Sequence[NDArray[np.int64]], device: torch.device) -> torch.Tensor:
    rows = np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)
    return sent(rows, device)
