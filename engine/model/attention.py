"""Attention over the pool: what every backend computes, and which one serves.

A backend is one module: `engine/model/torch_attention.py` everywhere, `engine/model/native/passes.py`
on a CPU, `engine/model/flash.py` on a GPU. They are held to one contract by one suite
(`tests/kit/paged.py`). This one refuses to know how any of them computes.
"""

import contextlib
from collections.abc import Sequence
from typing import Protocol

import torch

from engine.model.flash import FlashAttention, FlashKernel
from engine.model.native.library import Library, Unavailable
from engine.model.native.passes import Reader
from engine.model.pool import Pool
from engine.model.torch_attention import TorchAttention
from engine.step import Run


class StepAttention(Protocol):
    """Attention of one step's runs, layer by layer, once their keys and values are written."""

    def attend(
        self, layer: int, query: torch.Tensor, scaling: float, window: int | None
    ) -> torch.Tensor:
        """The rows of all runs, in their order, each over its own sequence.

        Args:
            layer: whose keys and values of the pool are read.
            query: [rows, query heads, head size], the pool's dtype, the last dimension contiguous.
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


def attention_over(
    pool: Pool,
    *,
    query_heads: int,
    flash: FlashKernel | None,
    library: Library | None,
    uses_views: bool,
) -> Attention:
    """flash-attn or the native kernels where loading found them to serve, else torch."""
    if flash is not None:
        return FlashAttention(flash, pool)
    if library is not None:
        with contextlib.suppress(Unavailable):
            return Reader(library, pool, query_heads, torch.get_num_threads())
    return TorchAttention(pool, uses_views=uses_views)
