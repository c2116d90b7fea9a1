"""Attention by the flash-attn packages, which read the pool where it lies.

A layer of the pool seen as [blocks, block tokens, KV heads, head size] is what they call a paged
cache, and a run's block table is its page table. Owns the three interfaces and what each asks for;
it refuses to know models.

Read and followed: flash-attn 2.8.4, flash-attn 3 of the same tree, flash-attn-4 4.0.0b36. All align
a causal mask at the bottom right, as a turn behind its history needs it, and tell the log-sum-exp of
packed rows as [query heads, rows]. A kernel that loads whole pages hides the scores of what lies behind
a sequence, and multiplies the values there by zero: they have to be numbers.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.model.memory import sent
from engine.model.pool import Pool
from engine.model.reading import Part, Reading, readings_of
from engine.step import Run


class Card(NamedTuple):
    """What the packages ask of a GPU and a model."""

    capability: tuple[int, int]
    dtype: torch.dtype
    """Of KV. One of them reads fp8, but wants its queries rounded as well, so none serves that."""
    head_size: int
    block_tokens: int | None
    """None: whatever the kernel reads."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Readings as the kernels want them; tensors are int32, contiguous, on the pool's device."""

    row_starts: torch.Tensor
    """[readings + 1]: where the rows of each begin, and the end."""
    token_starts: torch.Tensor
    """[readings + 1]: the same of the positions that they see."""
    tokens: torch.Tensor
    """[readings]: positions of each."""
    blocks: torch.Tensor
    """[readings, blocks of the longest]: block tables, filled up with block 0, which is not read."""
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
    is_causal: bool


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

    @abstractmethod
    def attend_apart(self, asked: Asked) -> Part: ...


class Flash2(FlashKernel):
    """Ampere and newer; blocks of 256 tokens.

    `flash_attn_varlen_func` alone: single rows of grouped heads it splits over the keys as well, and
    the other call looks at lengths on the host, in each layer, since 2.8.4.
    """

    name = "flash-attn 2"
    module = "flash_attn"
    functions = ("flash_attn_varlen_func",)
    block_tokens = 256

    @staticmethod
    def problem(card: Card) -> str | None:
        if card.capability < (8, 0):
            return "it wants compute capability 8.0 or more"
        if (card.block_tokens or 0) % Flash2.block_tokens:
            return f"it wants blocks of {Flash2.block_tokens} tokens or multiples"
        return _problem_of_heads(card, most=256)

    def attend(self, asked: Asked) -> torch.Tensor:
        out: torch.Tensor = self._call(asked)
        return out

    def attend_apart(self, asked: Asked) -> Part:
        # The name is of what it gives in training; in a forward pass that is no more than the
        # log-sum-exp, and it computes nothing that it would not otherwise.
        out, weight, _ = self._call(asked, return_attn_probs=True)
        return Part(out, weight.T)

    def _call(self, asked: Asked, **more: Any) -> Any:
        tables = asked.tables
        return self._package.flash_attn_varlen_func(
            asked.query,
            asked.keys,
            asked.values,
            cu_seqlens_q=tables.row_starts,
            cu_seqlens_k=tables.token_starts,
            max_seqlen_q=tables.most_rows,
            max_seqlen_k=tables.most_tokens,
            block_table=tables.blocks,
            softmax_scale=asked.scaling,
            causal=asked.is_causal,
            window_size=_sides(asked.window, open_end=-1),
            **more,
        )


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
        out: torch.Tensor = self._call(asked)
        return out

    def attend_apart(self, asked: Asked) -> Part:
        # Behind these two come what the splits had summed up.
        out, weight, *_ = self._call(asked, return_softmax_lse=True)
        return Part(out, weight.T)

    def _call(self, asked: Asked, **more: Any) -> Any:
        tables = asked.tables
        return self._package.flash_attn_with_kvcache(
            asked.query,
            asked.keys,
            asked.values,
            cache_seqlens=tables.tokens,
            page_table=tables.blocks,
            cu_seqlens_q=tables.row_starts,
            max_seqlen_q=tables.most_rows,
            softmax_scale=asked.scaling,
            causal=asked.is_causal,
            window_size=_sides(asked.window, open_end=-1),
            **more,
        )


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
        # The log-sum-exp comes as well, None where nobody asked for it.
        out: torch.Tensor = self._call(asked)[0]
        return out

    def attend_apart(self, asked: Asked) -> Part:
        out, weight = self._call(asked, return_lse=True)
        return Part(out, weight.T)

    def _call(self, asked: Asked, **more: Any) -> Any:
        tables = asked.tables
        return self._package.flash_attn_varlen_func(
            asked.query,
            asked.keys,
            asked.values,
            cu_seqlens_q=tables.row_starts,
            seqused_k=tables.tokens,
            max_seqlen_q=tables.most_rows,
            max_seqlen_k=tables.most_tokens,
            page_table=tables.blocks,
            softmax_scale=asked.scaling,
            causal=asked.is_causal,
            window_size=_sides(asked.window, open_end=None),
            **more,
        )


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
        return self.causal(readings_of(runs, self._pool.block_tokens))

    def causal(self, readings: Sequence[Reading]) -> "_Step":
        return _Step(self._kernel, self._pool, readings, is_causal=True)

    def full(self, readings: Sequence[Reading]) -> "_Step":
        return _Step(self._kernel, self._pool, readings, is_causal=False)


class _Step:
    """Readings of one row and of several go apart: kernels lay out their work by the longest."""

    def __init__(
        self, kernel: FlashKernel, pool: Pool, readings: Sequence[Reading], *, is_causal: bool
    ) -> None:
        self._kernel, self._pool, self._is_causal = kernel, pool, is_causal
        ends = list(accumulate(reading.rows for reading in readings))
        groups: tuple[list[int], list[int]] = ([], [])
        for at, reading in enumerate(readings):
            groups[reading.rows > 1].append(at)
        self._calls: list[tuple[torch.Tensor | None, Tables]] = []
        for group in filter(None, groups):
            tables = _tables([readings[at] for at in group], pool.device)
            rows = None
            if len(group) < len(readings):
                spans = [np.arange(ends[at] - readings[at].rows, ends[at]) for at in group]
                rows = sent(np.concatenate(spans), pool.device)
            self._calls.append((rows, tables))

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        for rows, asked in self._asked(layer, query, scaling, window):
            found = self._kernel.attend(asked)
            if rows is None:
                return found
            out[rows] = found
        return out

    def attend_apart(self, layer: int, query: torch.Tensor, scaling: float) -> Part:
        out = torch.empty_like(query)
        weight = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        for rows, asked in self._asked(layer, query, scaling, None):
            found = self._kernel.attend_apart(asked)
            if rows is None:
                return found
            out[rows], weight[rows] = found
        return Part(out, weight)

    def _asked(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> Iterator[tuple[torch.Tensor | None, Asked]]:
        """What the kernel is asked, and of which rows; None: of all."""
        keys, values = self._pool.key_blocks(layer), self._pool.value_blocks(layer)
        for rows, tables in self._calls:
            mine = query if rows is None else query[rows]
            yield rows, Asked(mine, keys, values, tables, scaling, window, self._is_causal)


def _tables(readings: Sequence[Reading], device: torch.device) -> Tables:
    """One array goes to the device: one copy for all layers."""
    rows = [reading.rows for reading in readings]
    tokens = [reading.tokens for reading in readings]
    count, most = len(readings), max(len(reading.blocks) for reading in readings)
    padded = np.zeros((count, most), dtype=np.int32)
    for at, reading in enumerate(readings):
        padded[at, : len(reading.blocks)] = reading.blocks
    words = np.concatenate(
        [
            np.cumsum([0, *rows], dtype=np.int32),
            np.cumsum([0, *tokens], dtype=np.int32),
            np.array(tokens, dtype=np.int32),
            padded.ravel(),
        ]
    )
    sizes = [count + 1, count + 1, count, count * most]
    row_starts, token_starts, lengths, table = torch.split(sent(words, device), sizes)
    return Tables(
        row_starts=row_starts,
        token_starts=token_starts,
        tokens=lengths,
        blocks=table.view(count, most),
        most_rows=max(rows),
        most_tokens=max(tokens),
    )
