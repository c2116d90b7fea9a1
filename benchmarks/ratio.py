"""Two arms, interleaved in one run: medians, and the median of the pairs' ratios with its interval.

Machines are shared and noisy, so what is reported is a ratio of neighbours, never two lone times.
"""

import random
import statistics
from collections.abc import Awaitable, Callable, Sequence

Arm = Callable[[int], Awaitable[float]]
"""One measurement, in seconds; the argument is the number of the pair."""


async def pairs(one: Arm, other: Arm, count: int) -> list[tuple[float, float]]:
    """`count` pairs; who goes first alternates."""
    measured: list[tuple[float, float]] = []
    for number in range(count):
        if number % 2:
            second = await other(number)
            measured.append((await one(number), second))
        else:
            first = await one(number)
            measured.append((first, await other(number)))
    return measured


def interval(values: Sequence[float], resamples: int = 2000) -> tuple[float, float, float]:
    """The median, and its 95 % interval by bootstrap (seeded)."""
    chance = random.Random(0)  # noqa: S311
    medians = sorted(
        statistics.median(chance.choices(values, k=len(values))) for _ in range(resamples)
    )
    return statistics.median(values), medians[resamples // 40], medians[-resamples // 40]


def report(names: tuple[str, str], measured: Sequence[tuple[float, float]]) -> None:
    """Medians of both arms in ms, and how often the first goes into the second."""
    for name, values in zip(names, zip(*measured, strict=True), strict=True):
        print(f"{name:>28}: {statistics.median(values) * 1e3:9.1f} ms")
    median, low, high = interval([other / one for one, other in measured])
    print(f"{names[1]} / {names[0]}: {median:.2f}  (95 %: {low:.2f} to {high:.2f})")
