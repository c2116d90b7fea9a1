"""A step on a GPU: drawn as on a CPU, and nothing waits for it but the one copy of what was drawn."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from engine.model.device_sample import draw_on_device, pack_draws
from engine.model.sample import draw_tokens
from engine.model.torch_attention import TorchAttention
from tests.kit.draws import SAMPLINGS, draws_of, logits_of
from tests.kit.paged import RAGGED, SHARED, Case, Sizes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


@contextmanager
def waiting_is_refused() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_gpu_draws_what_a_cpu_draws():
    draws = draws_of(list(SAMPLINGS.values()) * 3)
    logits = logits_of(len(draws))

    found = draw_on_device(logits.cuda(), draws)

    expected = [token.token_id for token in draw_tokens(logits, draws)]
    assert [token.token_id for token in found] == expected


def test_sampling_waits_for_nothing_before_its_copy():
    draws = draws_of(list(SAMPLINGS.values()))
    logits = logits_of(len(draws)).cuda()

    with waiting_is_refused():
        pack_draws(logits, draws)


@pytest.mark.parametrize("sizes", [Sizes(RAGGED), SHARED["some who share nothing"]])
def test_attention_in_torch_waits_for_nothing(sizes):
    case = Case(sizes, dtype=torch.bfloat16, device=torch.device("cuda"))

    with waiting_is_refused():
        out = case.attend(lambda pool, _: TorchAttention(pool))

    case.assert_equal(out)
