"""The contract of attention on a GPU, with the packages that are installed: `pytest tests/gpu`."""

from collections.abc import Callable, Mapping

import pytest
import torch

from engine.model.cascade import Cascade
from engine.model.flash import Card, FlashAttention, find_flash
from engine.model.pool import Pool
from engine.model.torch_attention import TorchAttention
from tests.kit.paged import CASES, SHARED, WINDOWED, Case, Sizes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def flash(pool: Pool) -> FlashAttention:
    card = Card(
        torch.cuda.get_device_capability(), pool.dtype, pool.shape.head_size, pool.block_tokens
    )
    kernel, problem = find_flash(card)
    if kernel is None:
        pytest.skip(problem)
    return FlashAttention(kernel, pool)


def a_case(sizes: Sizes, block_tokens: int, backend: str) -> Case:
    return Case(
        sizes,
        dtype=torch.bfloat16,
        block_tokens=block_tokens,
        device=torch.device("cuda"),
        poisons_tails=backend == "torch",
    )


BACKENDS: Mapping[str, Callable[[Pool], TorchAttention | FlashAttention]] = {
    "torch": TorchAttention,
    "flash": flash,
}


@pytest.mark.parametrize("case", [*CASES, *WINDOWED, *SHARED])
@pytest.mark.parametrize("block_tokens", [16, 128, 256])
@pytest.mark.parametrize("backend", BACKENDS)
def test_07_every_backend_equals_the_reference_and_meets_no_poison(backend, block_tokens, case):
    asked = a_case({**CASES, **WINDOWED, **SHARED}[case], block_tokens, backend)

    asked.assert_equal(asked.attend(lambda pool, _: BACKENDS[backend](pool)))


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("block_tokens", [16, 128, 256])
@pytest.mark.parametrize("backend", BACKENDS)
def test_07_a_prefix_that_is_read_once_for_all_changes_nothing(backend, block_tokens, case):
    asked = a_case(SHARED[case], block_tokens, backend)

    asked.assert_equal(
        asked.attend(
            lambda pool, heads: Cascade(BACKENDS[backend](pool), pool, heads, detour_bytes=0)
        )
    )
