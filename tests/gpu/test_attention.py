"""The contract of attention on a GPU, with the packages that are installed: `pytest tests/gpu`."""

import pytest
import torch

from engine.model.flash import Card, FlashAttention, find_flash
from engine.model.pool import Pool
from engine.model.torch_attention import TorchAttention
from tests.kit.paged import CASES, WINDOWED, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def flash(pool: Pool, _heads: int) -> FlashAttention:
    card = Card(
        torch.cuda.get_device_capability(), pool.dtype, pool.shape.head_size, pool.block_tokens
    )
    kernel, problem = find_flash(card)
    if kernel is None:
        pytest.skip(problem)
    return FlashAttention(kernel, pool)


@pytest.mark.parametrize("case", [*CASES, *WINDOWED])
@pytest.mark.parametrize("block_tokens", [16, 128, 256])
@pytest.mark.parametrize("backend", ["torch", "flash"])
def test_07_every_backend_equals_the_reference_and_meets_no_poison(backend, block_tokens, case):
    sizes = {**CASES, **WINDOWED}[case]
    asked = Case(
        sizes, dtype=torch.bfloat16, block_tokens=block_tokens, device=torch.device("cuda")
    )

    asked.assert_equal(
        asked.attend(flash if backend == "flash" else lambda pool, _: TorchAttention(pool))
    )
