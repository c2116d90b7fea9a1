"""Whether two samples differ, by the ranks of their values, and how little would be found. PURE.

Mann and Whitney's test: no form of the distributions is assumed, and one slow answer counts no more
than that it is the slowest. Equal values share their rank.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

ROUNDS = 200
"""Trials of a power: 0.9 of them is within 0.04."""


def p_value(left: Sequence[float], right: Sequence[float]) -> float:
    """How likely ranks so far apart are where nothing differs; both sides, ties corrected."""
    n, m = len(left), len(right)
    counts = Counter([*left, *right])
    ranks, before = {}, 0
    for value in sorted(counts):
        ranks[value] = before + (counts[value] + 1) / 2
        before += counts[value]
    total = n + m
    ties = sum(count**3 - count for count in counts.values())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    away = abs(sum(ranks[value] for value in left) - n * (total + 1) / 2)
    return math.erfc(max(0.0, away - 0.5) / math.sqrt(2 * variance))


def found_shift(
    values: Sequence[float], taken: int, *, alpha: float, power: float, seed: int
) -> float:
    """The least that `taken` of the values must be smaller by to be told from the rest.

    Found at `alpha` with probability `power`, by trying: the values are dealt out anew each time, so
    what they have in common with a shift, all their noise, is as it was measured. Infinite: never.
    """
    draw = random.Random(seed)  # noqa: S311

    def is_found(shift: float) -> bool:
        found = 0
        for _ in range(ROUNDS):
            dealt = draw.sample(values, len(values))
            left = [value - shift for value in dealt[:taken]]
            found += p_value(left, dealt[taken:]) < alpha
        return found >= power * ROUNDS

    low, high = 0.0, 2 * (max(values) - min(values)) + 1e-9
    if not is_found(high):
        return math.inf
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
