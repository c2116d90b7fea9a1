"""Attention over the pool: which backend serves.

A backend is one module: `engine/model/torch_attention.py` everywhere, `engine/model/native/passes.py`
on a CPU, `engine/model/flash.py` on a GPU. They are held to one contract by one suite
(`tests/kit/paged.py`). This one refuses to know how any of them computes.
"""

import contextlib

import torch

from engine.model.cascade import Cascade
from engine.model.flash import FlashAttention, FlashKernel
from engine.model.native.library import Library, Unavailable
from engine.model.native.passes import Reader
from engine.model.pool import Pool
from engine.model.reading import Attention
from engine.model.torch_attention import TorchAttention


def attention_over(
    pool: Pool,
    *,
    query_heads: int,
    flash: FlashKernel | None,
    library: Library | None,
    uses_views: bool,
) -> Attention:
    """flash-attn or the native kernels where loading found them to serve, else torch.

    The native kernels read a shared prefix once for each run: they tell no part's weight.
    """
    if flash is not None:
        return Cascade(FlashAttention(flash, pool), pool, query_heads)
    if library is not None:
        with contextlib.suppress(Unavailable):
            return Reader(library, pool, query_heads, torch.get_num_threads())
    return Cascade(TorchAttention(pool, uses_views=uses_views), pool, query_heads)
