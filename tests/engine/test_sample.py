"""Sampling on logits made by hand: truncation, penalties, bans, logprobs, the random stream."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Sampling
from engine.model.sample import draw_tokens, uniform
from engine.step import Draw, DrawnToken

VOCABULARY = 50_000


def draw(
    logits: torch.Tensor,
    sampling: Sampling,
    *,
    seed: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    banned: tuple[int, ...] = (),
) -> DrawnToken:
    order = Draw(
        sampling=sampling, seed=seed, prompt_ids=prompt, output_ids=output, banned_ids=banned
    )
    (token,) = draw_tokens(logits[None], [order])
    return token


def logits_of(chances: dict[int, float], size: int = VOCABULARY) -> torch.Tensor:
    """Logits whose softmax gives these chances; all other tokens are very unlikely."""
    logits = torch.full((size,), -30.0)
    for token_id, chance in chances.items():
        logits[token_id] = math.log(chance)
    return logits


def drawn_ids(logits: torch.Tensor, sampling: Sampling, draws: int = 300) -> Counter[int]:
    return Counter(draw(logits, sampling, seed=seed).token_id for seed in range(draws))


FOUR = logits_of({7: 0.4, 11: 0.3, 40_000: 0.2, 3: 0.1})


def test_temperature_zero_takes_the_largest_logit():
    assert draw(FOUR, Sampling(temperature=0)).token_id == 7


def test_no_rows_draw_nothing():
    assert draw_tokens(torch.empty(0, VOCABULARY), []) == []


def test_draws_follow_the_distribution():
    counts = drawn_ids(FOUR, Sampling(), draws=2000)

    assert counts[7] / 2000 == pytest.approx(0.4, abs=0.04)
    assert counts[3] / 2000 == pytest.approx(0.1, abs=0.03)


def test_a_low_temperature_sharpens():
    counts = drawn_ids(FOUR, Sampling(temperature=0.2))

    # 0.4^5 : 0.3^5 : 0.2^5 : 0.1^5
    assert counts[7] / 300 == pytest.approx(0.785, abs=0.07)
    assert counts[3] == 0


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(top_k=2), {7, 11}),
        (Sampling(top_k=1), {7}),
        (Sampling(top_p=0.5), {7, 11}),
        (Sampling(top_p=0.39), {7}),
        (Sampling(top_p=0.0), {7}),
        (Sampling(min_p=0.6), {7, 11}),
        (Sampling(top_k=3, top_p=0.7), {7, 11}),
        (Sampling(top_k=VOCABULARY * 2, top_p=0.95), {7, 11, 40_000, 3}),
    ],
)
def test_truncation_keeps_exactly_the_right_tokens(sampling, allowed):
    assert set(drawn_ids(FOUR, sampling)) == allowed


def test_a_nucleus_larger_than_the_first_look_is_exact():
    flat = torch.zeros(VOCABULARY)
    flat[:30_000] = 1e-3

    counts = drawn_ids(flat, Sampling(top_p=0.5), draws=200)

    # Half the mass lies in the 25,000 best, all of them among the first 30,000 ids.
    assert max(counts) < 30_000
    assert len(counts) > 190


def test_the_random_stream_depends_on_seed_and_position_only():
    sampling = Sampling(temperature=1.5, top_p=0.99)
    other = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1))
    order = Draw(sampling=sampling, seed=42, prompt_ids=(), output_ids=(1, 2, 3))
    noise = Draw(sampling=sampling, seed=5, prompt_ids=(), output_ids=())

    alone = draw_tokens(FOUR[None], [order])
    among = draw_tokens(torch.stack([other, FOUR, other]), [noise, order, noise])

    assert alone[0] == among[1]
    assert uniform(42, 3) != uniform(42, 4) != uniform(43, 3)


@given(st.integers(), st.integers(min_value=0, max_value=1 << 40))
def test_uniform_numbers_lie_in_the_half_open_unit_interval(seed, position):
    assert 0 <= uniform(seed, position) < 1


def test_banned_tokens_are_never_drawn():
    assert draw(FOUR, Sampling(temperature=0), banned=(7, 11)).token_id == 40_000
    banned = {draw(FOUR, Sampling(), seed=seed, banned=(7,)).token_id for seed in range(100)}
    assert 7 not in banned


def test_repetition_looks_at_prompt_and_output_and_the_others_at_output_alone():
    logits = torch.zeros(100)
    logits[:3] = torch.tensor([2.0, 1.9, 1.8])

    repeated = Sampling(repetition_penalty=1.5, temperature=0)
    assert draw(logits, repeated, prompt=(0,)).token_id == 1
    assert draw(logits, repeated, prompt=(0,), output=(1,)).token_id == 2
    # A logit below zero is pushed down as well: -1 becomes -1.5.
    assert draw(logits - 3, repeated, prompt=(0,)).token_id == 1

    present = Sampling(presence_penalty=0.15, temperature=0)
    assert draw(logits, present, prompt=(0,)).token_id == 0
    assert draw(logits, present, output=(0, 0, 0)).token_id == 1

    frequent = Sampling(frequency_penalty=0.06, temperature=0)
    assert draw(logits, frequent, output=(0,)).token_id == 0
    assert draw(logits, frequent, output=(0, 0)).token_id == 1


def test_logprobs_are_of_the_raw_distribution():
    sampling = Sampling(temperature=0, logprobs=3, presence_penalty=2.0, top_k=1)

    token = draw(FOUR, sampling, output=(7,), banned=(11,))

    assert token.token_id == 40_000
    assert token.logprob == pytest.approx(math.log(0.2), abs=1e-4)
    assert [token_id for token_id, _ in token.top] == [7, 11, 40_000]
    assert token.top[0][1] == pytest.approx(math.log(0.4), abs=1e-4)


def test_zero_logprobs_name_the_chosen_token_only():
    token = draw(FOUR, Sampling(temperature=0, logprobs=0))

    assert token.top == ()
    assert token.logprob == pytest.approx(math.log(0.4), abs=1e-4)


def test_drawing_leaves_the_logits_alone():
    before = FOUR.clone()

    draw(FOUR, Sampling(repetition_penalty=2.0, top_p=0.5), prompt=(7,), banned=(3,))

    assert torch.equal(before, FOUR)
