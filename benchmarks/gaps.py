"""Fits the gap model of `engine.kv.returns` to the first half of a workload, by likelihood.

Every turn of a session is an observation: another turn followed after a gap, or none did until the
half was over (then it may still come, and the likelihood says so). Which branch was gone on from
makes no difference. Knows no cache.
"""

import math
from collections.abc import Callable

import msgspec

from benchmarks.workloads import Turn, Workload
from engine.kv.returns import MOONCAKE, SHORTEST_GAP_S, GapModel, Habit, first_turn

SHORTEST_UNITS = 3
"""Paths below it cannot be told apart in a trace of blocks: whether they return is not seen."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A turn, and for how long (in seconds) it was watched until it `returned`, or did not."""

    habit: Habit
    watched_s: float
    returned: bool


def observe(workload: Workload) -> list[Seen]:
    end_s = workload.scored_from_s
    waiting: dict[tuple[str, str], tuple[Turn, Habit]] = {}
    seen: list[Seen] = []

    def note(turn: Turn, habit: Habit, until_s: float, *, returned: bool) -> None:
        if len(turn.path) >= SHORTEST_UNITS:
            watched_s = max(SHORTEST_GAP_S, until_s - turn.at_s)
            seen.append(Seen(habit=habit, watched_s=watched_s, returned=returned))

    for turn in workload.turns():
        if turn.at_s > end_s:
            break
        key = turn.owner, turn.session
        tokens = len(turn.path) * workload.unit_tokens
        if key in waiting:
            last, habit = waiting[key]
            note(last, habit, turn.at_s, returned=True)
            waiting[key] = turn, habit.after(tokens, turn.at_s - last.at_s, MOONCAKE)
        else:
            waiting[key] = turn, first_turn(tokens, turn.shared * workload.unit_tokens)
    for turn, habit in waiting.values():
        note(turn, habit, end_s, returned=False)
    return seen


def fit(workload: Workload) -> GapModel:
    """The likeliest model. `growth_tokens` and `pace`, which a habit was made with, stay."""
    seen = observe(workload)

    def unlikeliness(point: list[float]) -> float:
        return -sum(likelihood(_model(point), one) for one in seen) / len(seen)

    start = [MOONCAKE.odds, 1.0, 0.5, 0.0, math.log(MOONCAKE.gap_s), 0.0]
    return _model(_lowest(unlikeliness, start))


def likelihood(model: GapModel, seen: Seen) -> float:
    """Logarithm of the chance of what was seen."""
    odds = 1 / (1 + math.exp(-model.log_odds(seen.habit)))
    deviation = math.log(seen.watched_s / model.median_s(seen.habit)) / model.spread
    if seen.returned:
        density = -deviation * deviation / 2 - math.log(seen.watched_s * model.spread)
        return math.log(odds) + density - math.log(2 * math.pi) / 2
    gone_by = (1 + math.erf(deviation / math.sqrt(2))) / 2
    return math.log(max(1e-12, 1 - odds * gone_by))


def _model(point: list[float]) -> GapModel:
    odds, per_turn, of_first, per_growth, log_gap, log_spread = point
    return GapModel(
        odds=odds,
        odds_per_log_turn=per_turn,
        odds_of_first=of_first,
        odds_per_log_growth=per_growth,
        growth_tokens=MOONCAKE.growth_tokens,
        gap_s=math.exp(log_gap),
        pace=MOONCAKE.pace,
        spread=math.exp(log_spread),
    )


def _lowest(value: Callable[[list[float]], float], start: list[float]) -> list[float]:
    """Nelder and Mead's simplex (1965); a few hundred values are enough here."""
    size = len(start)
    corners = [[*start] for _ in range(size + 1)]
    for at in range(size):
        corners[at + 1][at] += 0.3
    simplex = sorted((value(corner), corner) for corner in corners)
    for _ in range(400):
        if simplex[-1][0] - simplex[0][0] < 1e-6:
            break
        middle = [sum(c[at] for _, c in simplex[:-1]) / size for at in range(size)]
        worst = simplex[-1][1]

        def beyond(
            by: float, middle: list[float] = middle, worst: list[float] = worst
        ) -> list[float]:
            return [m + by * (m - w) for m, w in zip(middle, worst, strict=True)]

        tried = (value(beyond(1.0)), beyond(1.0))
        if tried[0] < simplex[0][0]:
            tried = min(tried, (value(beyond(2.0)), beyond(2.0)))
        elif tried[0] >= simplex[-2][0]:
            tried = min(tried, (value(beyond(-0.5)), beyond(-0.5)))
        if tried[0] < simplex[-1][0]:
            simplex[-1] = tried
        else:
            best = simplex[0][1]
            halves = ([(b + c) / 2 for b, c in zip(best, c, strict=True)] for _, c in simplex[1:])
            simplex = [simplex[0], *((value(half), half) for half in halves)]
        simplex.sort()
    return simplex[0][1]
