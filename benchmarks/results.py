"""What a comparison measured: samples, their names and units, and the table with ratios.

A ratio is taken within a round, of neighbours in time; its median and interval are what is told.
It is how many times better the first server is, so above 1 is good whatever the unit.
"""

import statistics
from collections.abc import Iterator, Mapping

import msgspec

from benchmarks.ratio import interval

FIRST = "Keepwarm"
"""Who is compared with the others."""


class Figure(msgspec.Struct, frozen=True):
    """How a figure is called, `{}` standing for its size, in which unit, and whether more is better."""

    words: str
    unit: str
    rises: bool = False


FIGURES = {
    "prefill": Figure("prefill of {} tokens", "tok/s", rises=True),
    "decode": Figure("decode, {} streams", "tok/s", rises=True),
    "warm": Figure("first token of a turn, {} tokens of history", "ms"),
    "flat": Figure("the same, {} against the shortest history", "times as long"),
    "cold": Figure("first token of a prompt of {} tokens, nothing cached", "ms"),
    "spared": Figure("cache on against off, {} tokens", "times sooner", rises=True),
    "later": Figure("sessions: first token of later turns", "ms"),
    "later_p95": Figure("the same, 95th percentile", "ms"),
    "turn": Figure("sessions: first token of turn {}", "ms"),
    "output": Figure("sessions: reply tokens", "tok/s", rises=True),
    "computed": Figure("sessions: computed for a later turn", "tokens"),
    "tight_later": Figure("tight memory: first token of later turns", "ms"),
    "tight_later_p95": Figure("the same, 95th percentile", "ms"),
    "tight_turn": Figure("tight memory: first token of turn {}", "ms"),
    "tight_output": Figure("tight memory: reply tokens", "tok/s", rises=True),
    "tight_computed": Figure("tight memory: computed for a later turn", "tokens"),
    "apart": Figure("nothing shared: reply tokens", "tok/s", rises=True),
    "session": Figure("memory that a session added", "KiB"),
    "peak": Figure("peak memory of all processes", "MiB"),
    "tight_peak": Figure("tight memory: peak memory of all processes", "MiB"),
    "start": Figure("from the start to a first token", "s"),
    "driver": Figure("the driver's own share of a core", "%"),
    "others": Figure("what else ran meanwhile, share of a core", "%"),
}
"""By their keys, in the order of the table."""

REACH: Mapping[tuple[str, int | None], str] = {
    ("prefill", 512): "1.0x",
    ("prefill", 2048): "1.0x",
    ("decode", 1): "1.0x",
    ("decode", 8): "1.3x",
    ("flat", 2000): "2 at most",
    ("spared", 2000): "20 times",
    ("later", None): "1.5x",
    ("output", None): "1.2x",
    ("tight_later", None): "3.0x",
}
"""What was asked for, of the ratio or, where it says so, of the value."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one server in one round; `size` is the figure's own, where it has one."""

    figure: str
    size: int | None = None
    server: str
    round: int
    value: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One whole comparison."""

    machine: str
    date: str
    commit: str
    model: str
    options: dict[str, str]
    servers: list[str]
    samples: list[Sample]
    weights: dict[str, str] = {}
    """The format of each server's weights; those of one format are compared among themselves too."""
    faults: list[str] = []
    """What makes a time worthless, such as a reply of a wrong length."""

    def values(self, figure: str, size: int | None, server: str) -> dict[int, float]:
        """By round; the median where there are several in one."""
        found: dict[int, list[float]] = {}
        for one in self.samples:
            if (one.figure, one.size, one.server) == (figure, size, server):
                found.setdefault(one.round, []).append(one.value)
        return {number: statistics.median(values) for number, values in found.items()}

    def sizes(self, figure: str) -> list[int | None]:
        found = {one.size for one in self.samples if one.figure == figure}
        return sorted(found, key=lambda size: size or 0)


def better(figure: str, one: float, other: float) -> float:
    """How many times better `one` is."""
    return one / other if FIGURES[figure].rises else other / one


def ratios(
    result: Result, figure: str, size: int | None, other: str, *, one: str = FIRST
) -> list[float]:
    """How many times better `one` is than `other`, round by round."""
    ours = result.values(figure, size, one)
    theirs = result.values(figure, size, other)
    return [
        better(figure, ours[number], theirs[number])
        for number in sorted(ours.keys() & theirs.keys())
        if ours[number] and theirs[number]
    ]


def best_peer(
    result: Result, figure: str, size: int | None, weights: str | None = None
) -> str | None:
    """Whose median is the best of the others', or of those with weights in this format."""
    medians = {
        name: statistics.median(values.values())
        for name in result.servers
        if not name.startswith(FIRST)
        and weights in {None, result.weights.get(name)}
        and (values := result.values(figure, size, name))
    }
    if not medians:
        return None
    choose = max if FIGURES[figure].rises else min
    return choose(medians, key=lambda name: medians[name])


def formats(result: Result) -> dict[str, str]:
    """Formats that Keepwarm and others were measured in, and by which name Keepwarm was."""
    ours = {result.weights[name]: name for name in result.servers if name.startswith(FIRST)}
    theirs = {result.weights[name] for name in result.servers if not name.startswith(FIRST)}
    return {weights: name for weights, name in ours.items() if weights in theirs}


def table(result: Result) -> str:
    """Markdown: medians, behind them Keepwarm's ratio to each; that to the best with its interval.

    The best of any format of weights, and the best of each that Keepwarm was measured in too.
    """
    within = formats(result) if result.weights else {}
    against = [f"{FIRST} against the best", *(f"both in {weights}" for weights in within)]
    heads = ["", "unit", *result.servers, *against, "to reach"]
    rows = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *_rows(result, within)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _rows(result: Result, within: Mapping[str, str]) -> Iterator[list[str]]:
    for key, figure in FIGURES.items():
        for size in result.sizes(key):
            cells = [_cell(result, key, size, server) for server in result.servers]
            words = figure.words.format(f"{size:,}" if size is not None else "")
            asked = REACH.get((key, size), "")
            against = [
                _against(result, key, size),
                *(_against(result, key, size, one) for one in within.items()),
            ]
            yield [words, figure.unit, *cells, *against, asked]


def _cell(result: Result, figure: str, size: int | None, server: str) -> str:
    values = result.values(figure, size, server)
    if not values:
        return ""
    shown = _shown(statistics.median(values.values()))
    found = ratios(result, figure, size, server)
    if server == FIRST or not found or FIGURES[figure].unit == "%":
        return shown
    return f"{shown} ({statistics.median(found):.2f}x)"


def _against(
    result: Result, figure: str, size: int | None, within: tuple[str | None, str] = (None, FIRST)
) -> str:
    """Against the best peer; `within`: of this format of weights, and by which name Keepwarm is."""
    weights, ours = within
    peer = best_peer(result, figure, size, weights)
    found = ratios(result, figure, size, peer, one=ours) if peer else []
    if not found or FIGURES[figure].unit == "%":
        return ""
    median, low, high = interval(found)
    return f"**{median:.2f}x** ({low:.2f} to {high:.2f}), {peer}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
