"""Draws in every way of sampling, and logits for them: whoever samples is asked all of them."""

from collections.abc import Mapping, Sequence

import torch

from engine.api import Sampling
from engine.step import Draw

VOCABULARY = 3000
SAMPLINGS: Mapping[str, Sampling] = {
    "greedy": Sampling(temperature=0),
    "greedy with logprobs": Sampling(temperature=0, logprobs=4),
    "greedy, its own logprob": Sampling(temperature=0, logprobs=0),
    "greedy and penalised": Sampling(temperature=0, frequency_penalty=0.7, presence_penalty=0.4),
    "greedy, never twice": Sampling(temperature=0, repetition_penalty=1.8, logprobs=2),
    "as it comes": Sampling(),
    "hot": Sampling(temperature=1.7, logprobs=1),
    "cold": Sampling(temperature=0.2),
    "the best few": Sampling(top_k=5),
    "the best one": Sampling(top_k=1),
    "more than there are": Sampling(top_k=VOCABULARY * 2),
    "a nucleus": Sampling(top_p=0.8),
    "no nucleus": Sampling(top_p=0.0),
    "nothing unlikely": Sampling(min_p=0.3),
    "all three": Sampling(temperature=1.2, top_k=40, top_p=0.9, min_p=0.05, logprobs=6),
    "all there is": Sampling(
        temperature=0.8,
        top_k=100,
        top_p=0.95,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        logprobs=3,
    ),
}
BANNED = (7, 11, 40)


def draws_of(samplings: Sequence[Sampling], seed: int = 0) -> list[Draw]:
    """With a prompt and an output that have tokens in common, and repeat some."""
    return [
        Draw(
            sampling=sampling,
            seed=seed + row,
            prompt_ids=(1, 2, 3, 3, 200 + row),
            output_ids=tuple([3, 9, 9, 40][: row % 5]),
            banned_ids=BANNED if row % 3 == 0 else (),
        )
        for row, sampling in enumerate(samplings)
    ]


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))
