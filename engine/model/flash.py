"""Attention by the flash-attn packages, which read the pool where it lies.

A layer of the pool seen as [blocks, block tokens, KV heads, head size] is what they call a paged
cache, and a run's block table is its page table. Owns the three interfaces and what each asks for;
it refuses to know models.

Read and followed: flash-attn 2.8.4, flash-attn 3 of the same tree, flash-attn-4 4.0.0b36. All align
a causal mask at the bottom right, as a turn behind its history needs it.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.model.pool import Pool
from engine.step import Run


class Card(NamedTuple):
    """What the packages ask of a GPU and a model."""

    capability: tuple[int, int]
    dtype: torch.dtype
    head_size: int
    block_tokens: int | None
    """None: whatever the kernel reads."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Runs as the kernels want them; tensors are int32, contiguous, on the pool's device."""

    row_starts: torch.Tensor
    """[runs + 1]: where each run's rows begin, and the end."""
    token_starts: torch.Tensor
    """[runs + 1]: the same of the positions that they see."""
    tokens: torch.Tensor
    """[runs]: positions of each sequence, the new rows among them."""
    blocks: torch.Tensor
    """[runs, blocks of the longest]: block tables, filled up with block 0, which is not read."""
    most_rows: int
    most_tokens: int


class Asked(NamedTuple):
    """One call; keys and values are [blocks, block tokens, KV heads, head size]."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: Tables
    scaling: float
    window: int | None


class FlashKernel(ABC):
    """One package's interface."""

    name: str
    module: str
    functions: tuple[str, ...]
    block_tokens: int
    """Of which the pool's blocks must be multiples."""

    def __init__(self, package: Any) -> None:
        self._package = package

    @staticmethod
    @abstractmethod
    def problem(card: Card) -> str | None:
        """Why it does not serve there."""

    @abstractmethod
    def attend(self, asked: Asked) -> torch.Tensor: ...


class Flash2(FlashKernel):
    """Ampere and newer; blocks of 256 tokens. Decoding goes through the call that splits keys."""

    name = "flash-attn 2"
    module = "flash_attn"
    functions = ("flash_attn_varlen_func", "flash_attn_with_kvcache")
    block_tokens = 256

    @staticmethod
    def problem(card: Card) -> str | None:
        if card.capability < (8, 0):
            return "it wants compute capability 8.0 or more"
        if (card.block_tokens or 0) % Flash2.block_tokens:
            return f"it wants blocks of {Flash2.block_tokens} tokens or multiples"
        return _problem_of_heads(card, most=256)

    def attend(self, asked: Asked) -> torch.Tensor:
        query, keys, values, tables, scaling, window = asked
        shared: dict[str, Any] = {
            "block_table": tables.blocks,
            "softmax_scale": scaling,
            "causal": True,
            "window_size": _sides(window, open_end=-1),
        }
        if tables.most_rows == 1:
            one_each = self._package.flash_attn_with_kvcache(
                query[:, None], keys, values, cache_seqlens=tables.tokens, **shared
            )
            single: torch.Tensor = one_each[:, 0]
            return single
        out: torch.Tensor = self._package.flash_attn_varlen_func(
            query,
            keys,
            values,
            cu_seqlens_q=tables.row_starts,
            cu_seqlens_k=tables.token_starts,
            max_seqlen_q=tables.most_rows,
            max_seqlen_k=tables.most_tokens,
            **shared,
        )
        return out


class Flash3(FlashKernel):
    """Hopper; blocks of any size."""

    name = "flash-attn 3"
    module = "flash_attn_interface"
    functions = ("flash_attn_with_kvcache",)
    block_tokens = 1

    @staticmethod
    def problem(card: Card) -> str | None:
        if card.capability[0] != 9:
            return "it wants compute capability 9.x"
        return _problem_of_heads(card, most=256)

    def attend(self, asked: Asked) -> torch.Tensor:
        query, keys, values, tables, scaling, window = asked
        out: torch.Tensor = self._package.flash_attn_with_kvcache(
            query,
            keys,
            values,
            cache_seqlens=tables.tokens,
            page_table=tables.blocks,
            cu_seqlens_q=tables.row_starts,
            max_seqlen_q=tables.most_rows,
            softmax_scale=scaling,
            causal=True,
            window_size=_sides(window, open_end=-1),
        )
        return out


class Flash4(FlashKernel):
    """Hopper and the Blackwells of compute capability 10 and 11; blocks of any size."""

    name = "flash-attn 4"
    module = "flash_attn.cute"
    functions = ("flash_attn_varlen_func",)
    block_tokens = 1

    @staticmethod
    def problem(card: Card) -> str | None:
        # Those of 8.x and 12.x compute with it, but not over pages.
        if card.capability[0] not in (9, 10, 11):
            return "it wants compute capability 9.x to 11.x"
        return _problem_of_heads(card, most=256 if card.capability[0] == 9 else 128)

    def attend(self, asked: Asked) -> torch.Tensor:
        query, keys, values, tables, scaling, window = asked
        # The log-sum-exp comes as well, None where nobody asked for it.
        attended: tuple[torch.Tensor, object] = self._package.flash_attn_varlen_func(
            query,
            keys,
            values,
            cu_seqlens_q=tables.row_starts,
            seqused_k=tables.tokens,
            max_seqlen_q=tables.most_rows,
            max_seqlen_k=tables.most_tokens,
            page_table=tables.blocks,
            softmax_scale=scaling,
            causal=True,
            window_size=_sides(window, open_end=None),
        )
        return attended[0]


_KERNELS: tuple[type[FlashKernel], ...] = (Flash3, Flash4, Flash2)
"""In the order in which they are taken: whoever built the third did so for this card."""


def find_flash(card: Card) -> tuple[FlashKernel | None, str]:
    """The kernel that serves here, or None and why none of them does."""
    problems = []
    for kernel in _KERNELS:
        problem = kernel.problem(card)
        if problem is None:
            package = _imported(kernel.module, kernel.functions)
            if package is not None:
                return kernel(package), ""
            problem = "it is not installed"
        problems.append(f"{kernel.name}: {problem}")
    return None, "; ".join(problems)


def _imported(module: str, functions: Sequence[str]) -> Any:
    """The module, if it is there with these functions: two of the packages share a name."""
    try:
        package = importlib.import_module(module)
    except ImportError:
        return None
    return package if all(hasattr(package, name) for name in functions) else None


def _problem_of_heads(card: Card, *, most: int) -> str | None:
    if card.dtype not in (torch.bfloat16, torch.float16):
        return "it wants bfloat16"
    if card.head_size > most or card.head_size % 8:
        return f"it wants heads of at most {most}, in steps of 8"
    return None


def _sides(window: int | None, *, open_end: int | None) -> tuple[int | None, int | None]:
    """A window as they count it: positions before the row's own, and behind it."""
    return (open_end, open_end) if window is None else (window - 1, 0)


class FlashAttention:
    """One kernel over one pool."""

    def __init__(self, kernel: FlashKernel, pool: Pool) -> None:
        self._kernel, self._pool = kernel, pool
        self.name = kernel.name

    def over(self, runs: Sequence[Run]) -> "_Step":
        return _Step(self._kernel, self._pool, runs)


class _Step:
    """Runs of one row and runs of several go apart: kernels lay out their work by the longest."""

    def __init__(self, kernel: FlashKernel, pool: Pool, runs: Sequence[Run]) -> None:
        self._kernel, self._pool = kernel, pool
        ends = list(accumulate(len(run.token_ids) for run in runs))
        groups: tuple[list[int], list[int]] = ([], [])
        for at, run in enumerate(runs):
            groups[len(run.token_ids) > 1].append(at)
        self._parts: list[tuple[torch.Tensor | None, Tables]] = []
        for group in filter(None, groups):
            tables = _tables([runs[at] for at in group], pool)
            rows = None
            if len(group) < len(runs):
                spans = [np.arange(ends[at] - len(runs[at].token_ids), ends[at]) for at in group]
                rows = torch.from_numpy(np.concatenate(spans)).to(pool.device)
            self._parts.append((rows, tables))

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        keys, values = self._pool.key_blocks(layer), self._pool.value_blocks(layer)
        out = torch.empty_like(query)
        for rows, tables in self._parts:
            mine = query if rows is None else query[rows]
            found = self._kernel.attend(Asked(mine, keys, values, tables, scaling, window))
            if rows is None:
                return found
            out[rows] = found
        return out


def _tables(runs: Sequence[Run], pool: Pool) -> Tables:
    """One array goes to the device, so that a step waits for one copy."""
    rows = [len(run.token_ids) for run in runs]
    tokens = [run.start + count for run, count in zip(runs, rows, strict=True)]
    blocks = [-(-count // pool.block_tokens) for count in tokens]
    most = max(blocks)
    padded = np.zeros((len(runs), most), dtype=np.int32)
    for at, (run, count) in enumerate(zip(runs, blocks, strict=True)):
        padded[at, :count] = run.block_table[:count]
    words = np.concatenate(
        [
            np.cumsum([0, *rows], dtype=np.int32),
            np.cumsum([0, *tokens], dtype=np.int32),
            np.array(tokens, dtype=np.int32),
            padded.ravel(),
        ]
    )
    count = len(runs)
    sizes = [count + 1, count + 1, count, count * most]
    row_starts, token_starts, lengths, table = torch.split(
        torch.from_numpy(words).to(pool.device), sizes
    )
    return Tables(
        row_starts=row_starts,
        token_starts=token_starts,
        tokens=lengths,
        blocks=table.view(count, most),
        most_rows=max(rows),
        most_tokens=max(tokens),
    )
