"""From logits to tokens where the logits are: all rows at once, and one copy to the host a step.

The rules of `engine/model/sample.py` in its order, over its random stream, and the same tokens but
where rounding decides; that one takes row by row on a CPU, where it is faster. Nothing here looks at
a number before the copy: whoever does waits for the whole forward pass.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.model.memory import Coming, sent
from engine.model.sample import NO_MASKS, Masks, is_penalised, is_truncated, uniform
from engine.step import Draw, DrawnToken

# In the packed result of a row: its token, that one's logprob, then ids and logprobs of the likeliest.
_TOKEN, _LOGPROB, _TOP = 0, 1, 2


class Drawing:
    """As `draw_tokens`, on whatever device `logits` are: tokens on their way to the host."""

    def __init__(
        self, logits: torch.Tensor, draws: Sequence[Draw], masks: Masks = NO_MASKS
    ) -> None:
        """Waits for nothing."""
        self._draws = draws
        self._packed = Coming(pack_draws(logits, draws, masks)) if draws else None

    def tokens(self) -> list[DrawnToken]:
        """Waits for them."""
        return [] if self._packed is None else _unpacked(self._packed.wait(), self._draws)


def pack_draws(
    logits: torch.Tensor, draws: Sequence[Draw], masks: Masks = NO_MASKS
) -> torch.Tensor:
    """What each row of `logits` [draws, vocabulary] draws, left on their device.

    [draws, 2 + 2 x the most logprobs wanted], float64: it holds every id and every float32. Mutates
    nothing and waits for nothing.
    """
    raw = logits.float()
    adjusted = _adjusted(raw, draws, masks)
    ids = adjusted.argmax(-1)
    for is_cut, choose in ((False, _whole), (True, _truncated)):
        chosen = [
            (row, draw)
            for row, draw in enumerate(draws)
            if draw.sampling.temperature > 0 and is_truncated(draw.sampling) == is_cut
        ]
        if chosen:
            rows = _sent((row for row, _ in chosen), np.int64, raw)
            heat = _sent((draw.sampling.temperature for _, draw in chosen), np.float32, raw)
            hot = adjusted[rows] / heat[:, None]
            ids[rows] = choose(hot, [draw for _, draw in chosen])
    return _packed(raw, ids, draws)


def _unpacked(packed: torch.Tensor, draws: Sequence[Draw]) -> list[DrawnToken]:
    found: list[list[float]] = packed.tolist()
    tokens = []
    for numbers, draw in zip(found, draws, strict=True):
        wanted = draw.sampling.logprobs
        most = (len(numbers) - _TOP) // 2
        ids = [int(number) for number in numbers[_TOP : _TOP + (wanted or 0)]]
        values = numbers[_TOP + most : _TOP + most + (wanted or 0)]
        logprob = None if wanted is None else numbers[_LOGPROB]
        top = tuple(zip(ids, values, strict=True))
        tokens.append(DrawnToken(token_id=int(numbers[_TOKEN]), logprob=logprob, top=top))
    return tokens


def _packed(raw: torch.Tensor, ids: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    wanted = [(row, draw.sampling.logprobs) for row, draw in enumerate(draws)]
    telling = [(row, count) for row, count in wanted if count is not None]
    most = max((count for _, count in telling), default=0)
    packed = torch.zeros((len(draws), _TOP + 2 * most), dtype=torch.float64, device=raw.device)
    packed[:, _TOKEN] = ids.double()
    if telling:
        rows = _sent((row for row, _ in telling), np.int64, raw)
        logprobs = raw[rows].log_softmax(-1)
        own = logprobs.gather(-1, ids[rows][:, None])
        values, top = logprobs.topk(most)
        packed[rows, _LOGPROB:] = torch.cat([own.double(), top.double(), values.double()], -1)
    return packed


# ---------------------------------------------------------------- bans and penalties


class _Places(NamedTuple):
    """Some tokens of some rows, and a number for each."""

    rows: torch.Tensor
    ids: torch.Tensor
    numbers: torch.Tensor


def _adjusted(raw: torch.Tensor, draws: Sequence[Draw], masks: Masks) -> torch.Tensor:
    """Logits after bans and penalties; the given ones where there are none."""
    banned = any(draw.banned_ids for draw in draws)
    if not masks and not banned and not any(is_penalised(draw.sampling) for draw in draws):
        return raw
    logits = raw.clone()
    for rows, ids, penalties in _places(_repeated(draws), raw):
        values = logits[rows, ids]
        logits[rows, ids] = torch.where(values > 0, values / penalties, values * penalties)
    for rows, ids, less in _places(_said(draws), raw):
        logits[rows, ids] -= less
    unmasked = [(row, draw) for row, draw in enumerate(draws) if row not in masks]
    bans = [(row, np.array(draw.banned_ids), -np.inf) for row, draw in unmasked if draw.banned_ids]
    for rows, ids, never in _places(bans, raw):
        logits[rows, ids] = never
    if masks:
        rows = _sent(masks, np.int64, raw)
        hidden = sent(~np.stack(list(masks.values())), raw.device)
        logits[rows] = logits[rows].masked_fill(hidden, -torch.inf)
    return logits


_Marks = Iterable[tuple[int, np.ndarray, float | np.ndarray]]
"""Of a row: token ids, and one number for all of them or for each."""


def _repeated(draws: Sequence[Draw]) -> _Marks:
    for row, draw in enumerate(draws):
        penalty = draw.sampling.repetition_penalty
        if penalty != 1:
            parts = [np.asarray(part, np.int64) for part in (draw.prompt_ids, draw.output_ids)]
            yield row, np.unique(np.concatenate(parts)), penalty


def _said(draws: Sequence[Draw]) -> _Marks:
    for row, draw in enumerate(draws):
        often, ever = draw.sampling.frequency_penalty, draw.sampling.presence_penalty
        if often != 0 or ever != 0:
            said, counts = np.unique(np.asarray(draw.output_ids, np.int64), return_counts=True)
            yield row, said, often * counts + ever


def _places(marks: _Marks, raw: torch.Tensor) -> Iterable[_Places]:
    """All marks as one, on the device; none where there are none."""
    found = list(marks)
    if found:
        rows = np.concatenate([np.full(len(ids), row) for row, ids, _ in found])
        ids = np.concatenate([ids for _, ids, _ in found])
        numbers = np.concatenate([np.broadcast_to(number, len(ids)) for _, ids, number in found])
        yield _Places(
            sent(rows.astype(np.int64), raw.device),
            sent(ids.astype(np.int64), raw.device),
            sent(numbers.astype(np.float32), raw.device),
        )


# ---------------------------------------------------------------- the random choice


def _whole(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Ids [draws] from logits [draws, vocabulary], of which every token may come."""
    return _inverted(logits.softmax(-1), draws)


def _truncated(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The same, of the tokens that survive top-k, top-p and min-p."""
    vocabulary = logits.shape[-1]
    samplings = [draw.sampling for draw in draws]
    most = _sent((one.top_k or vocabulary for one in samplings), np.int64, logits)
    mass = _sent((one.top_p for one in samplings), np.float64, logits)
    least = _sent((one.min_p for one in samplings), np.float32, logits)
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    behind = torch.arange(vocabulary, device=logits.device) >= most[:, None]
    chances = ordered.masked_fill(behind, -torch.inf).softmax(-1)
    # A token is kept while the mass before it is below top-p; the first one always is.
    before = chances.double().cumsum(-1) - chances
    inside = (before < mass[:, None]) & (chances >= least[:, None] * chances[:, :1])
    inside[:, 0] = True
    place = _inverted(chances.masked_fill(~inside, 0.0), draws)
    return ids.gather(-1, place[:, None])[:, 0]


def _inverted(chances: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Where the cumulative distribution passes each draw's random number: [draws]."""
    numbers = _sent((uniform(one.seed, len(one.output_ids)) for one in draws), np.float64, chances)
    mass = chances.double().cumsum(-1)
    whole = mass[:, -1:].contiguous()
    place = torch.searchsorted(mass, numbers[:, None] * whole, right=True)
    # Rounding may put the target on the last edge, behind which are tokens of no mass.
    return torch.minimum(place, torch.searchsorted(mass, whole))[:, 0]


def _sent(numbers: Iterable[float], dtype: type, like: torch.Tensor) -> torch.Tensor:
    return sent(np.array(list(numbers), dtype=dtype), like.device)
