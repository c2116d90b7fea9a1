"""What a backend of attention is asked for, what it reads, and what it gives.

Owns the words that backends and those who ask them share: `Attention` is what a step needs,
`Backend` what a cascade needs as well, and parts of attention are merged here. It refuses to know
how any of them computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.step import Run


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """`rows` packed rows over the first `tokens` positions of a block table.

    Causal, a row is one of the last `rows` of these positions and sees those up to its own.
    """

    rows: int
    tokens: int
    blocks: NDArray[np.int32]
    """Just the blocks that the positions lie in."""

    @property
    def start(self) -> int:
        """Where the rows begin, where they are the last positions."""
        return self.tokens - self.rows

    def slots(self, block_tokens: int) -> NDArray[np.int64]:
        """The pool's slot of each position."""
        slots = self.blocks[:, None].astype(np.int64) * block_tokens + np.arange(block_tokens)
        return slots.ravel()[: self.tokens]

    def behind(self, blocks: int, block_tokens: int) -> "Reading":
        """The same rows, without the table's first blocks."""
        tokens = self.tokens - blocks * block_tokens
        return Reading(self.rows, tokens, self.blocks[blocks:])


def readings_of(runs: Sequence[Run], block_tokens: int) -> list[Reading]:
    """What the rows of a plan's runs read, in their order."""
    found = []
    for run in runs:
        tokens = run.start + len(run.token_ids)
        blocks = np.asarray(run.block_table[: -(-tokens // block_tokens)], dtype=np.int32)
        found.append(Reading(len(run.token_ids), tokens, blocks))
    return found


class Part(NamedTuple):
    """Attention of rows over some of their keys, as if there were no others."""

    out: torch.Tensor
    """[rows, query heads, head size]."""
    weight: torch.Tensor
    """[rows, query heads], float32: the natural log of the sum of the exponentials of the scores."""


def merged(one: Part, other: Part) -> torch.Tensor:
    """Attention over the keys of both parts, which have none in common.

    Each part counts as much as its keys weigh among all ("Hydragen", Juravsky et al. 2024, section
    3.1); of two parts that share is the sigmoid of how much their weights differ.
    """
    share = torch.sigmoid(one.weight - other.weight)[..., None]  # [rows, query heads, 1]
    return torch.lerp(other.out, one.out, share.to(one.out.dtype))


class StepAttention(Protocol):
    """Attention of one step's runs, layer by layer, once their keys and values are written."""

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        """The rows of all runs, in their order, each over its own sequence.

        Args:
            layer: whose keys and values of the pool are read.
            query: [rows, query heads, head size], the last dimension contiguous.
            scaling: what products are multiplied with before the softmax.
            window: how many positions a row sees, its own the last of them; None: all up to it.

        Returns:
            As `query`. Nothing is read but the slots of `[0, end)` of each run's sequence.
        """
        ...


class Attention(Protocol):
    """A backend over one pool."""

    @property
    def name(self) -> str:
        """As `doctor` and the figures tell it."""
        ...

    def over(self, runs: Sequence[Run]) -> StepAttention:
        """What all layers share of a step; the runs have rows, and their blocks are the pool's."""
        ...


class PartialStep(Protocol):
    """Attention of readings over just their keys, layer by layer."""

    def attend_apart(self, layer: int, query: torch.Tensor, scaling: float) -> Part:
        """Of the rows of all readings, in their order; arguments as of `StepAttention.attend`."""
        ...


class Backend(Attention, Protocol):
    """A backend that tells what its parts weigh."""

    def causal(self, readings: Sequence[Reading]) -> PartialStep:
        """Each row sees the positions up to its own."""
        ...

    def full(self, readings: Sequence[Reading]) -> PartialStep:
        """Each row sees all positions."""
        ...
