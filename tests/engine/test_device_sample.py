"""Sampling where the logits are: the same tokens as row by row, and no look at a number on the way."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.model.device_sample import Drawing, pack_draws
from engine.model.sample import NO_MASKS, Masks, draw_tokens
from engine.step import Draw
from tests.kit.draws import SAMPLINGS, VOCABULARY, draws_of, logits_of


def assert_equal(logits: torch.Tensor, draws: Sequence[Draw], masks: Masks = NO_MASKS) -> None:
    before = logits.clone()
    expected = draw_tokens(logits, draws, masks)

    found = Drawing(logits, draws, masks).tokens()

    assert torch.equal(before, logits)
    assert [token.token_id for token in found] == [token.token_id for token in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == (
            None if other.logprob is None else pytest.approx(other.logprob, abs=1e-5)
        )
        assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]
        values = [value for _, value in other.top]
        assert [value for _, value in one.top] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_way_of_sampling_draws_the_same_tokens(name):
    draws = draws_of([SAMPLINGS[name]] * 60)

    assert_equal(logits_of(60), draws)


# Rounding makes many of them equal, and which of equals are the best few is not said.
@pytest.mark.parametrize("name", [name for name, one in SAMPLINGS.items() if one.top_k == 0])
def test_logits_in_bfloat16_are_the_same_to_both(name):
    draws = draws_of([SAMPLINGS[name]] * 30)

    assert_equal(logits_of(30).bfloat16(), draws)


def test_rows_that_sample_in_every_way_share_a_step():
    samplings = list(SAMPLINGS.values()) * 3

    for seed in range(5):
        draws = draws_of(samplings, seed=100 * seed)
        assert_equal(logits_of(len(draws), seed), draws)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_what_a_grammar_allows_is_all_that_is_drawn(name):
    draws = draws_of([SAMPLINGS[name]] * 9)
    allowed = np.zeros(VOCABULARY, dtype=bool)
    allowed[[7, 9, 300, 301, 302]] = True
    masks = {1: allowed, 3: ~allowed, 6: allowed}

    assert_equal(logits_of(9), draws, masks)

    tokens = Drawing(logits_of(9), draws, masks).tokens()
    assert all(allowed[tokens[row].token_id] for row in (1, 6))
    assert not allowed[tokens[3].token_id]


def test_a_draw_does_not_depend_on_the_rows_beside_it():
    samplings = list(SAMPLINGS.values())
    draws, logits = draws_of(samplings), logits_of(len(samplings))

    together = Drawing(logits, draws).tokens()

    alone = [Drawing(logits[[row]], [draw]).tokens()[0] for row, draw in enumerate(draws)]
    assert [token.token_id for token in together] == [token.token_id for token in alone]


def test_no_rows_draw_nothing():
    assert Drawing(torch.empty(0, VOCABULARY), []).tokens() == []


# Tensors with a shape and no numbers: whoever asks for one is refused. On a GPU each such look would
# wait for the whole step (`tests/gpu`).
def without_numbers(draws: Sequence[Draw]) -> torch.Tensor:
    return torch.empty(len(draws), VOCABULARY, device="meta")


@pytest.mark.parametrize("masked", [False, True])
def test_nothing_is_looked_at_before_the_one_copy(masked):
    draws = draws_of(list(SAMPLINGS.values()))
    masks = {2: np.ones(VOCABULARY, dtype=bool)} if masked else NO_MASKS

    packed = pack_draws(without_numbers(draws), draws, masks)

    assert packed.device.type == "meta"
    assert packed.shape == (len(draws), 2 + 2 * 6)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_look_at_a_number_would_be_seen(name):
    draws = draws_of([SAMPLINGS[name]])

    with pytest.raises((RuntimeError, TypeError), match="meta"):
        draw_tokens(without_numbers(draws), draws)
