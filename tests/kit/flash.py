"""Stand-ins for the flash-attn packages: as strict as they are, and on a CPU.

Each takes the very arguments of the package's function, by their names, refuses what the package's
own checks refuse (read in its source: dtypes, last dimensions, tables, page sizes, shapes), and
answers by the float64 reference. What they accept, the real ones accept on a card that fits.
"""

from types import SimpleNamespace

import torch

from tests.kit.kernels import kernel
from tests.kit.paged import paged_reference

Window = tuple[int | None, int | None]


def flash_attn_2() -> SimpleNamespace:
    """The module `flash_attn`, version 2.8.4."""

    @kernel
    def flash_attn_varlen_func(  # noqa: PLR0917  as the package has it
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        assert block_table is not None
        assert (dropout_p, softcap) == (0.0, 0.0)
        runs = len(cu_seqlens_q) - 1
        _check_starts(cu_seqlens_q, runs, len(q))
        _check_ints(cu_seqlens_k, (runs + 1,))
        tokens = cu_seqlens_k.diff()
        assert max_seqlen_k >= int(tokens.max()), "the longest sequence"
        out, lse = _answer(
            q,
            k,
            v,
            starts=cu_seqlens_q,
            tokens=tokens,
            table=block_table,
            most_rows=max_seqlen_q,
            scaling=softmax_scale,
            causal=causal,
            window=window_size,
            open_end=-1,
            page_step=256,
        )
        # Without dropout it gives no probabilities, whatever the argument is called.
        return (out, lse, torch.empty(0)) if return_attn_probs else out

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


def flash_attn_3() -> SimpleNamespace:
    """The module `flash_attn_interface` of the same tree."""

    @kernel
    def flash_attn_with_kvcache(  # noqa: PLR0917  as the package has it
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: None = None,
        v: None = None,
        qv: None = None,
        rotary_cos: None = None,
        rotary_sin: None = None,
        cache_seqlens: torch.Tensor | None = None,
        cache_batch_idx: None = None,
        cache_leftpad: None = None,
        page_table: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k_new: None = None,
        max_seqlen_q: int | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        num_splits: int = 0,
        pack_gqa: bool | None = None,
        return_softmax_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        assert page_table is not None and cache_seqlens is not None
        assert cu_seqlens_q is not None and max_seqlen_q is not None
        _check_starts(cu_seqlens_q, len(page_table), len(q))
        out, lse = _answer(
            q,
            k_cache,
            v_cache,
            starts=cu_seqlens_q,
            tokens=cache_seqlens,
            table=page_table,
            most_rows=max_seqlen_q,
            scaling=softmax_scale,
            causal=causal,
            window=window_size,
            open_end=-1,
        )
        return (out, lse, torch.empty(0), torch.empty(0)) if return_softmax_lse else out

    return SimpleNamespace(flash_attn_with_kvcache=flash_attn_with_kvcache)


def flash_attn_4() -> SimpleNamespace:
    """The module `flash_attn.cute`, version 4.0.0b36."""

    @kernel
    def flash_attn_varlen_func(  # noqa: PLR0917  as the package has it
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        qv: None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k: None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        min_seqlen_k: int | None = None,
        seqused_q: None = None,
        seqused_k: torch.Tensor | None = None,
        gather_kv_indices: None = None,
        page_table: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (None, None),
        num_splits: int = 1,
        pack_gqa: bool | None = None,
        return_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        assert page_table is not None and seqused_k is not None
        assert cu_seqlens_q is not None and max_seqlen_q is not None
        _check_starts(cu_seqlens_q, len(page_table), len(q))
        assert max_seqlen_k is None or max_seqlen_k >= int(seqused_k.max())
        out, lse = _answer(
            q,
            k,
            v,
            starts=cu_seqlens_q,
            tokens=seqused_k,
            table=page_table,
            most_rows=max_seqlen_q,
            scaling=softmax_scale,
            causal=causal,
            window=window_size,
            open_end=None,
        )
        return out, lse if return_lse else None

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


def _answer(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    starts: torch.Tensor,
    tokens: torch.Tensor,
    table: torch.Tensor,
    most_rows: int,
    scaling: float | None,
    causal: bool,
    window: Window,
    open_end: int | None,
    page_step: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, heads, head size], and the log-sum-exp, float32 [heads, rows]."""
    assert q.dtype in (torch.bfloat16, torch.float16), "only fp16 and bf16"
    assert q.dtype == k.dtype == v.dtype, "query, key and value have the same dtype"
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "contiguous last dimensions"
    pages, page_tokens, kv_heads, size = k.shape
    assert page_tokens % page_step == 0, f"pages are multiples of {page_step} tokens"
    assert v.shape == k.shape
    assert (q.ndim, q.shape[2]) == (3, size)
    assert q.shape[1] % kv_heads == 0, "KV heads divide query heads"
    assert size % 8 == 0 and size <= 256, "heads of at most 256, in steps of 8"
    runs = len(table)
    _check_ints(tokens, (runs,))
    _check_ints(table, (runs, table.shape[1]))
    assert int(table.min()) >= 0 and int(table.max()) < pages, "pages that there are"
    assert int(tokens.min()) > 0 and int(tokens.max()) <= table.shape[1] * page_tokens
    assert most_rows == int(starts.diff().max()), "the most rows of a run"
    for last, seen in zip(
        table.gather(1, (tokens[:, None].long() - 1) // page_tokens), tokens, strict=True
    ):
        behind = v[int(last), (int(seen) - 1) % page_tokens + 1 :]
        assert not bool(behind.isnan().any()), "values behind a sequence are multiplied by zero"
    left, right = window
    assert (left, right) == (open_end, open_end) or (right == 0 and left is not None and left >= 0)
    scale = size**-0.5 if scaling is None else scaling
    seen = None if left == open_end or left is None else left + 1
    found, weight = paged_reference(
        *(q, k, v),
        row_starts=starts,
        tokens=tokens,
        tables=table,
        scaling=scale,
        window=seen,
        is_causal=causal,
    )
    return found.to(q.dtype), weight.float().T.contiguous()


def _check_starts(starts: torch.Tensor, runs: int, rows: int) -> None:
    _check_ints(starts, (runs + 1,))
    assert (int(starts[0]), int(starts[-1])) == (0, rows)
    assert bool((starts.diff() > 0).all()), "no run is without rows"


def _check_ints(table: torch.Tensor, shape: tuple[int, ...]) -> None:
    assert table.dtype == torch.int32, "int32"
    assert tuple(table.shape) == shape
    assert table.is_contiguous(), "contiguous"
