"""From logits to tokens: penalties, truncation, the random stream, logprobs.

Owns the order in which these are applied: banned tokens and those that a grammar does not allow,
repetition penalty (over prompt and output), frequency and presence penalty (over output),
temperature, top-k, top-p over what is left, min-p. Logprobs are of the raw distribution, before all of that, as the OpenAI dialect has them.

The random stream is one uniform number a draw, a pure function of seed and position, mapped through
the cumulative distribution: what else is in the batch, and how often the engine was restarted,
cannot change it.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from engine.api import Sampling
from engine.model.grammar import Allowed
from engine.step import Draw, DrawnToken

# What is looked among first, as shares of the likeliest token's chance: most nuclei are small, and
# sorting a whole vocabulary takes ten times as long as finding them.
_FLOORS = (1e-4, 1e-8)

Masks = Mapping[int, Allowed]
"""By rows of logits, what a grammar allows there."""

NO_MASKS: Masks = MappingProxyType({})

Chances = NDArray[np.float32]
"""[tokens]."""


def draw_tokens(
    logits: torch.Tensor, draws: Sequence[Draw], masks: Masks = NO_MASKS
) -> list[DrawnToken]:
    """One token for each row of `logits` [draws, vocabulary] on a CPU; mutates nothing.

    Elsewhere `engine/model/device_sample.py` draws, which asks the device once for all rows. Where a row has a mask, of what that allows; bans are in it.
    """
    if not draws:
        return []
    best = _best(logits)
    return [
        DrawnToken(token_id=best[row])
        if _is_plain(draw) and _may_be(best[row], draw, masks.get(row))
        else _draw(logits[row].float(), draw, masks.get(row))
        for row, draw in enumerate(draws)
    ]


def _may_be(token_id: int, draw: Draw, mask: Allowed | None) -> bool:
    return token_id not in draw.banned_ids if mask is None else bool(mask[token_id])


def _best(logits: torch.Tensor) -> list[int]:
    # numpy's search is vectorised, torch's is not: 6 against 110 us a row of 49,152.
    if logits.dtype == torch.float32:
        best: list[int] = logits.numpy().argmax(-1).tolist()
    else:
        best = logits.argmax(-1).tolist()
    return best


def _is_plain(draw: Draw) -> bool:
    """Whether the largest logit is the answer, where it may be drawn, and nothing else is asked."""
    sampling = draw.sampling
    return sampling.temperature == 0 and sampling.logprobs is None and not is_penalised(sampling)


def is_penalised(sampling: Sampling) -> bool:
    """Whether what was said changes the logits."""
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


def is_truncated(sampling: Sampling) -> bool:
    """Whether some tokens are too unlikely to be drawn."""
    return sampling.top_k != 0 or sampling.top_p < 1 or sampling.min_p > 0


def _draw(logits: torch.Tensor, draw: Draw, mask: Allowed | None) -> DrawnToken:
    adjusted = _adjust(logits, draw, mask)
    if draw.sampling.temperature == 0:
        token_id = int(adjusted.argmax())
    else:
        token_id = _sample(adjusted / draw.sampling.temperature, draw)
    return _with_logprobs(logits, token_id, draw.sampling.logprobs)


def _adjust(logits: torch.Tensor, draw: Draw, mask: Allowed | None) -> torch.Tensor:
    """Logits [vocabulary] after bans and penalties; the given ones are left as they are."""
    sampling = draw.sampling
    if mask is None and not draw.banned_ids and not is_penalised(sampling):
        return logits
    logits = logits.clone()
    if sampling.repetition_penalty != 1:
        ids = [np.asarray(part, np.int64) for part in (draw.prompt_ids, draw.output_ids)]
        seen = torch.from_numpy(np.concatenate(ids))
        penalty, values = sampling.repetition_penalty, logits[seen]
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.frequency_penalty != 0 or sampling.presence_penalty != 0:
        said, counts = np.unique(np.asarray(draw.output_ids, np.int64), return_counts=True)
        less = sampling.frequency_penalty * counts + sampling.presence_penalty
        logits[torch.from_numpy(said)] -= torch.from_numpy(less).to(logits)
    if mask is None:
        logits[list(draw.banned_ids)] = -torch.inf
    else:
        logits[torch.from_numpy(~mask)] = -torch.inf
    return logits


def _sample(logits: torch.Tensor, draw: Draw) -> int:
    """A token from logits [vocabulary] that are already divided by the temperature."""
    sampling = draw.sampling
    if not is_truncated(sampling):
        return _invert(logits.softmax(-1).numpy(), draw)
    kept, ids = _truncate(logits, sampling)
    return int(ids[_invert(kept, draw)])


def _truncate(logits: torch.Tensor, sampling: Sampling) -> tuple[Chances, NDArray[np.int64]]:
    """Probabilities (not normalised) and ids that survive top-k, top-p and min-p, best first."""
    if 0 < sampling.top_k < len(logits):
        best, order = logits.topk(sampling.top_k)
        kept, ids = best.softmax(-1).numpy(), order.numpy()
    else:
        kept, ids = _likeliest(logits.softmax(-1).numpy(), sampling)
    # A token is kept while the mass before it is below top-p; the first one always is.
    before = np.cumsum(kept, dtype=np.float64) - kept
    inside = (before < sampling.top_p) & (kept >= sampling.min_p * kept[0])
    inside[0] = True
    return kept[inside], ids[inside]


def _likeliest(chances: Chances, sampling: Sampling) -> tuple[Chances, NDArray[np.int64]]:
    """Chances and ids, best first, of at least all that survive top-p and min-p."""
    most = chances.max()
    ids = np.arange(len(chances))
    for floor in _FLOORS:
        above = np.flatnonzero(chances >= floor * most)
        if floor <= sampling.min_p or chances[above].sum(dtype=np.float64) >= sampling.top_p:
            ids = above
            break
    ids = ids[np.argsort(-chances[ids], kind="stable")]
    return chances[ids], ids


def _invert(chances: Chances, draw: Draw) -> int:
    """The index at which the cumulative distribution passes the draw's random number."""
    # torch's running sum is four times as fast as numpy's.
    mass = torch.from_numpy(chances).double().cumsum(-1).numpy()
    target = uniform(draw.seed, len(draw.output_ids)) * mass[-1]
    # Rounding may put the target on the last edge, behind which are tokens of no mass.
    last = np.searchsorted(mass, mass[-1])
    return int(min(np.searchsorted(mass, target, side="right"), last))


def uniform(seed: int, position: int) -> float:
    """The random number of one draw, in [0, 1): 53 bits of BLAKE2b over seed and position."""
    message = struct.pack("<QQ", seed & (2**64 - 1), position)
    digest = hashlib.blake2b(message, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / float(1 << 53)


def _with_logprobs(logits: torch.Tensor, token_id: int, wanted: int | None) -> DrawnToken:
    if wanted is None:
        return DrawnToken(token_id=token_id)
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(wanted)
    return DrawnToken(
        token_id=token_id,
        logprob=float(logprobs[token_id]),
        top=tuple(zip(ids.tolist(), values.tolist(), strict=True)),
    )
