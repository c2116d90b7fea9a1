"""How likely a session comes back, and when: what keeping it is worth a second.

Knows a session's habits (turns, its last gap, how much its last turn added) and how long it has
been idle; knows no entry, no lease and no clock.

The chance that another turn follows is a logistic function of those habits; the gap before it is
lognormal, and a session's gaps resemble each other. Worth is the greatest expected number of
returns per second of memory over all ways of waiting from now on (the index of an optimal stopping
problem: Gittins 1979; the same idea as "hit density", Beckmann et al., LHD, NSDI 2018). So it
rises while the user reads and falls once the usual gap is over.
"""

import math
from functools import cache
from itertools import accumulate
from statistics import NormalDist

import msgspec

SHORTEST_GAP_S = 3.0
"""Below it gaps are not told apart: the trace's clock ticks so."""

RECENT_SHARE = 0.9
RECENT_DEVIATIONS = NormalDist().inv_cdf(RECENT_SHARE)
SHORTEST_RECENT_S = 60.0
"""Whoever answers within seconds pauses now and then, all the same."""

GRID = [step / 8 for step in range(-48, 41)]
"""Logarithms of idle time over the median gap, from far below to far above it."""

LOGITS = [step / 2 for step in range(-12, 13)]
"""Log odds of a return, as far as they differ in effect."""


class GapModel(msgspec.Struct, frozen=True, kw_only=True):
    """Log odds of another turn, and the gap before it: fitted by `benchmarks/gaps.py`."""

    odds: float
    """Log odds after a later turn that added little."""
    odds_per_log_turn: float
    odds_of_first: float
    """Added where the session has had one turn only."""
    odds_per_log_growth: float
    """Per logarithm of the last turn's tokens over `growth_tokens`, where it added more."""
    growth_tokens: float
    gap_s: float
    """Median gap."""
    pace: float
    """By how much of its logarithm's distance from the median a gap foretells the next one's."""
    spread: float
    """Standard deviation of the gaps' logarithm."""

    def log_odds(self, habit: "Habit") -> float:
        """Of another turn, at the end of the last one."""
        turns = max(1, habit.turns)
        growth = max(1.0, habit.new_tokens / self.growth_tokens)
        return (
            self.odds
            + self.odds_per_log_turn * math.log(turns)
            + self.odds_of_first * (turns == 1)
            + self.odds_per_log_growth * math.log(growth)
        )

    def median_s(self, habit: "Habit") -> float:
        """Half of the next gaps are shorter."""
        return self.gap_s * math.exp(habit.pace)

    def recent_s(self, habit: "Habit") -> float:
        """Of those who come back, `RECENT_SHARE` have by then."""
        usual_s = self.median_s(habit) * math.exp(self.spread * RECENT_DEVIATIONS)
        return max(SHORTEST_RECENT_S, usual_s)


MOONCAKE = GapModel(
    odds=-0.86,
    odds_per_log_turn=1.17,
    odds_of_first=1.28,
    odds_per_log_growth=-0.39,
    growth_tokens=512.0,
    gap_s=158.0,
    pace=0.40,
    spread=0.99,
)
"""From the first half of the Mooncake FAST 25 conversation trace (Apache-2.0)."""


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session at the end of its last turn."""

    turns: int
    path_tokens: int
    """Where its last turn ended."""
    new_tokens: int
    """What its last turn added to that, the reply with it."""
    pace: float = 0.0
    """By how much its gaps' logarithm differs from the median's, as far as that foretells the next:
    a moving average that begins at no difference."""

    def after(self, path_tokens: int, gap_s: float, model: GapModel) -> "Habit":
        """Another turn ended, so long after the last one."""
        differs = math.log(max(gap_s, SHORTEST_GAP_S) / model.gap_s)
        return Habit(
            turns=self.turns + 1,
            path_tokens=path_tokens,
            new_tokens=max(0, path_tokens - self.path_tokens),
            pace=self.pace + model.pace * (differs - self.pace),
        )


NO_HABIT = Habit(turns=0, path_tokens=0, new_tokens=0)


def first_turn(path_tokens: int, known_tokens: int) -> Habit:
    """The operator's text in front is nothing that the session added."""
    return Habit(turns=1, path_tokens=path_tokens, new_tokens=path_tokens - known_tokens)


def worth(model: GapModel, habit: Habit, idle_s: float) -> float:
    """Expected returns per second of memory, of a session that has been idle for so long."""
    median_s = model.median_s(habit)
    level = (model.log_odds(habit) - LOGITS[0]) * 2
    at = (math.log(max(idle_s, 0.0) / median_s + 1e-9) - GRID[0]) * 8
    return _interpolated(_table(model.spread), level, at) / median_s


def chance(model: GapModel, habit: Habit, idle_s: float) -> float:
    """The chance that the session comes back at all, given that it has not for so long."""
    odds = 1 / (1 + math.exp(-model.log_odds(habit)))
    gone_by = odds * _normal(math.log(max(idle_s, 1e-9) / model.median_s(habit)) / model.spread)
    return (odds - gone_by) / (1 - gone_by)


@cache
def _table(spread: float) -> list[list[float]]:
    """Worth by log odds and by idle time, both in median gaps."""
    return [_row(1 / (1 + math.exp(-logit)), spread) for logit in LOGITS]


def _row(odds: float, spread: float) -> list[float]:
    times = [math.exp(log) for log in GRID]
    away = [1 - odds * _normal(log / spread) for log in GRID]
    steps = zip(times, times[1:], away, away[1:], strict=False)
    spans = [(end - start) * (one + two) / 2 for start, end, one, two in steps]
    waited = list(accumulate(spans, initial=0.0))
    last = len(GRID) - 1
    row = [
        max((away[at] - away[to]) / (waited[to] - waited[at]) for to in range(at + 1, last + 1))
        for at in range(last)
    ]
    return [*row, row[-1]]


def _interpolated(table: list[list[float]], level: float, at: float) -> float:
    level = min(max(level, 0.0), len(LOGITS) - 1.001)
    at = min(max(at, 0.0), len(GRID) - 1.001)
    row, column = int(level), int(at)
    down, right = level - row, at - column
    low, high = table[row], table[row + 1]
    return (1 - down) * ((1 - right) * low[column] + right * low[column + 1]) + down * (
        (1 - right) * high[column] + right * high[column + 1]
    )


def _normal(deviation: float) -> float:
    return (1 + math.erf(deviation / math.sqrt(2))) / 2
