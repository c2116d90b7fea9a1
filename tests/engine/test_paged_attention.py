"""Every backend of attention under one contract (`tests/kit/paged.py`), as far as a CPU has them.

The flash-attn packages run on a GPU only (`tests/gpu`); here their place is taken by stand-ins that
are as strict (`tests/kit/flash.py`), so that what they would be called with is right.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch

from engine.model.cascade import Cascade
from engine.model.flash import Flash2, Flash3, Flash4, FlashAttention, FlashKernel
from engine.model.native.library import library
from engine.model.native.passes import Reader
from engine.model.pool import FP8, Pool
from engine.model.reading import readings_of
from engine.model.torch_attention import TorchAttention
from tests.kit.flash import flash_attn_2, flash_attn_3, flash_attn_4
from tests.kit.model import model_cache
from tests.kit.paged import (
    CASES,
    CLOSE,
    RAGGED,
    SCALING,
    SHARED,
    WINDOWED,
    Case,
    MakeAttention,
    Sizes,
    reference_part,
)

DTYPES = (torch.float32, torch.bfloat16)


def native(pool: Pool, heads: int, threads: int = 2) -> Reader:
    return Reader(library(model_cache()), pool, heads, threads)


class Backend(NamedTuple):
    make: MakeAttention
    dtypes: tuple[torch.dtype, ...] = DTYPES
    block_tokens: int = 16
    knows_windows: bool = True
    poisons_tails: bool = True

    def case(self, sizes: Sizes, dtype: torch.dtype, block_tokens: int | None = None) -> Case:
        return Case(
            sizes,
            dtype=dtype,
            block_tokens=block_tokens or self.block_tokens,
            poisons_tails=self.poisons_tails,
        )


def flash(kernel: FlashKernel) -> Backend:
    return Backend(
        lambda pool, _: FlashAttention(kernel, pool),
        (torch.bfloat16,),
        max(16, kernel.block_tokens),
        poisons_tails=False,
    )


BACKENDS: Mapping[str, Backend] = {
    "torch": Backend(lambda pool, _: TorchAttention(pool)),
    "torch, copied": Backend(lambda pool, _: TorchAttention(pool, uses_views=False)),
    "native": Backend(native, knows_windows=False),
    "flash-attn 2": flash(Flash2(flash_attn_2())),
    "flash-attn 3": flash(Flash3(flash_attn_3())),
    "flash-attn 4": flash(Flash4(flash_attn_4())),
}
SERVED = [(name, dtype) for name, backend in BACKENDS.items() for dtype in backend.dtypes]
SERVED_WINDOWS = [(name, dtype) for name, dtype in SERVED if BACKENDS[name].knows_windows]
SERVED_APART = [(name, dtype) for name, dtype in SERVED if name != "native"]
COMPUTED = ("torch", "native")


def cascaded(make: MakeAttention) -> MakeAttention:
    """A backend that reads every shared prefix once, however little that saves."""

    def over(pool: Pool, heads: int) -> Cascade:
        backend = make(pool, heads)
        assert isinstance(backend, TorchAttention | FlashAttention)
        return Cascade(backend, pool, heads, detour_bytes=0)

    return over


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "dtype"), SERVED)
def test_07_every_backend_equals_the_reference_and_meets_no_poison(name, dtype, case):
    backend = BACKENDS[name]
    asked = backend.case(CASES[case], dtype)

    asked.assert_equal(asked.attend(backend.make))


@pytest.mark.parametrize("case", ["ragged", "several of one token", "a window over blocks"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["torch", "torch, copied"])
def test_07_torch_reads_what_is_kept_in_fp8_as_it_is_kept(name, dtype, case):
    sizes = {**CASES, **WINDOWED}[case]
    asked = Case(sizes, dtype=dtype, kv_dtype=FP8)

    asked.assert_equal(asked.attend(BACKENDS[name].make))
    if sizes.window is None:
        asked.assert_equal(asked.attend(cascaded(BACKENDS[name].make)))


@pytest.mark.parametrize("case", WINDOWED)
@pytest.mark.parametrize(("name", "dtype"), SERVED_WINDOWS)
def test_a_window_hides_what_is_before_it(name, dtype, case):
    backend = BACKENDS[name]
    asked = backend.case(WINDOWED[case], dtype)

    asked.assert_equal(asked.attend(backend.make))


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize(("name", "dtype"), SERVED_APART)
def test_07_a_prefix_that_is_read_once_for_all_changes_nothing(name, dtype, case):
    backend = BACKENDS[name]
    asked = backend.case(SHARED[case], dtype)

    asked.assert_equal(asked.attend(cascaded(backend.make)))


@pytest.mark.parametrize(("name", "dtype"), SERVED_APART)
def test_a_layer_with_a_window_reads_a_shared_prefix_as_far_as_it_sees_it(name, dtype):
    backend = BACKENDS[name]
    sizes = dataclasses.replace(SHARED["all behind one prefix"], window=100)
    asked = backend.case(sizes, dtype)

    asked.assert_equal(asked.attend(cascaded(backend.make)))


@pytest.mark.parametrize(("name", "dtype"), SERVED_APART)
def test_a_backend_tells_what_the_keys_of_a_part_weigh(name, dtype):
    backend = BACKENDS[name]
    case = backend.case(Sizes([(700, 1), (300, 40), (600, 1)]), dtype, 256)
    case.attend(backend.make)
    attention = backend.make(case.pool, 9)
    assert isinstance(attention, TorchAttention | FlashAttention)
    readings = readings_of(case.runs, 256)
    close = CLOSE[dtype]

    for step, is_causal in ((attention.causal(readings), True), (attention.full(readings), False)):
        found = step.attend_apart(1, case.query, SCALING)
        parts, row = [], 0
        for one in case.sequences:
            rows = case.query[row : row + one.rows]
            parts.append(reference_part(rows, one.keys, one.values, SCALING, is_causal=is_causal))
            row += one.rows
        out, weight = map(torch.cat, zip(*parts, strict=True))
        torch.testing.assert_close(found.out.double(), out, atol=close, rtol=close)
        assert found.weight.dtype == torch.float32
        torch.testing.assert_close(found.weight.double(), weight, atol=close, rtol=close)


@pytest.mark.parametrize("block_tokens", [1, 5, 16, 64])
@pytest.mark.parametrize(("name", "dtype"), SERVED)
def test_blocks_of_any_size_are_read(name, dtype, block_tokens):
    backend = BACKENDS[name]
    sizes = Sizes([(0, 33), (70, 1), (41, 12)])
    asked = backend.case(sizes, dtype, block_tokens)

    if name == "flash-attn 2":
        with pytest.raises(AssertionError, match="pages are multiples of 256"):
            asked.attend(backend.make)
    else:
        asked.assert_equal(asked.attend(backend.make))


def test_layers_with_and_without_a_window_share_a_step():
    case = Case(Sizes(RAGGED))
    case.attend(BACKENDS["torch"].make)
    step = TorchAttention(case.pool).over(case.runs)

    for window in (100, None, 100):
        case.window = window
        case.assert_equal(step.attend(1, case.query, SCALING, case.window))


@pytest.mark.parametrize("rows", [2, 11, 12, 13, 127, 128, 129, 257])
@pytest.mark.parametrize("start", [0, 1, 15, 100])
def test_a_turn_sees_its_history_and_itself_at_any_seam(rows, start):
    case = Case(Sizes([(start, rows)], heads=(3, 1)))

    case.assert_equal(case.attend(native))


@pytest.mark.parametrize("position", [0, 1, 15, 16, 255, 256, 257, 511, 512, 767, 1300])
def test_one_token_sees_all_before_it_at_any_seam(position):
    case = Case(Sizes([(position, 1)], heads=(6, 2)))

    case.assert_equal(case.attend(native))


@pytest.mark.parametrize("dtype", DTYPES)
def test_07_the_native_kernels_give_the_same_bits_wherever_the_blocks_lie(dtype):
    scattered, straight = (Case(Sizes(RAGGED), dtype=dtype, order=order) for order in (0, None))

    assert torch.equal(scattered.attend(native), straight.attend(native))


@pytest.mark.parametrize("dtype", DTYPES)
def test_06_the_native_kernels_give_the_same_bits_in_any_company_on_any_threads(dtype):
    case = Case(Sizes(RAGGED), dtype=dtype)

    together = case.attend(lambda pool, heads: native(pool, heads, 3))
    alone = case.attend_alone(lambda pool, heads: native(pool, heads, 1))

    assert torch.equal(together, alone)


@pytest.mark.parametrize("name", COMPUTED)
def test_scores_of_any_size_are_weighed_without_overflow(name):
    case = Case(Sizes([(60, 5), (60, 1)], heads=(2, 1)))
    case.query *= 1e3

    out = case.attend(BACKENDS[name].make)

    torch.testing.assert_close(out.double(), case.expected(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("rows", [1, 40])
def test_07_a_key_that_was_never_written_is_seen_in_the_result(name, rows):
    case = Case(Sizes([(40, rows)], heads=(2, 1)))
    case.pool.keys(1)[case.sequences[0].table[0] * 16] = float("nan")

    assert bool(case.attend(BACKENDS[name].make).isnan().all())
