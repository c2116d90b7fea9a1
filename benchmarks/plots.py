"""Tables and plots of a comparison from its JSON: `python -m benchmarks.plots against.json --out docs`.

`history` shows the first token of a turn against the tokens before it, `sessions` the first token of
each turn while many chat at once, `streams` tokens a second. Plots need matplotlib (`.[bench]`).
"""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.ratio import interval
from benchmarks.results import FIRST, Result, table

OURS = ("#d9480f", "#fdba8c", "#a61e4d")
OTHERS = ("#1971c2", "#74b816", "#7048e8", "#868e96", "#0c8599")
"""Colours of Keepwarm, however it was set, and of its peers."""


def history(result: Result, axes: Any) -> None:
    for colour, server in _coloured(result):
        _line(result, axes, "warm", server, color=colour, marker="o", label=_label(result, server))
    if result.sizes("cold"):
        _line(
            result,
            axes,
            "cold",
            FIRST,
            color=OURS[0],
            marker="x",
            linestyle=":",
            label=f"{FIRST}, nothing cached",
        )
    axes.set(yscale="log", xlabel="tokens of history", ylabel="first token, ms")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("First token of a turn with 40 new tokens")


def sessions(result: Result, axes: Any) -> None:
    _bars(result, axes, "turn")
    axes.set_title("Many sessions at once, room for all")


def tight_sessions(result: Result, axes: Any) -> None:
    _bars(result, axes, "tight_turn")
    axes.set_title("With thinking, and memory for a third")


def streams(result: Result, axes: Any) -> None:
    for colour, server in _coloured(result):
        _line(
            result, axes, "decode", server, color=colour, marker="o", label=_label(result, server)
        )
    axes.set(xscale="log", xlabel="streams at once", ylabel="tokens a second")
    axes.set_xticks(result.sizes("decode"), labels=[str(size) for size in result.sizes("decode")])
    axes.minorticks_off()
    axes.set_title("Decoding")


Panel = Callable[[Result, Any], None]
PLOTS: Mapping[str, Mapping[str, Panel]] = {
    "history": {"warm": history},
    "sessions": {"turn": sessions, "tight_turn": tight_sessions},
    "streams": {"decode": streams},
}
"""Panels by the figure that they cannot be drawn without."""


def draw(result: Result, name: str, folder: Path) -> list[Path]:
    """One plot as PNG and SVG; the files that were written, none where nothing was measured."""
    panels = [panel for figure, panel in PLOTS[name].items() if result.sizes(figure)]
    if not panels:
        return []
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    # The same result gives the same file.
    mpl.rcParams["svg.hashsalt"] = name
    figure = Figure(figsize=(3 + 4 * len(panels), 4.4), layout="constrained")
    grid: Sequence[Any] = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, axes in zip(panels, grid, strict=True):
        panel(result, axes)
        axes.grid(alpha=0.3, axis="y")
        axes.set_axisbelow(True)
        axes.set_ylim(bottom=None if axes.get_yscale() == "log" else 0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *grid[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=3 if len(panels) == 1 else 6,
        fontsize=8,
        frameon=False,
    )
    written = []
    for kind, dated in (("png", {}), ("svg", {"Date": None})):
        path = folder / f"{name}.{kind}"
        figure.savefig(path, dpi=150, metadata=dated)
        written.append(path)
    return written


def _coloured(result: Result) -> list[tuple[str, str]]:
    ours, others = iter(OURS), iter(OTHERS)
    return [
        (next(ours if server.startswith(FIRST) else others), server) for server in result.servers
    ]


def _label(result: Result, server: str) -> str:
    """As readers know it: two of Keepwarm are told apart by their weights."""
    weights = {result.weights.get(one) for one in result.servers if one.startswith(FIRST)}
    if server.startswith(FIRST) and len(weights) > 1:
        return f"{FIRST}, {result.weights[server]}"
    return server


def _line(result: Result, axes: Any, figure: str, server: str, **style: Any) -> None:
    """Medians, with their intervals where there are several rounds."""
    found = {
        size: list(result.values(figure, size, server).values()) for size in result.sizes(figure)
    }
    sizes = [size for size, values in found.items() if values]
    spans = [interval(found[size]) for size in sizes]
    middle = [median for median, _, _ in spans]
    axes.errorbar(
        sizes,
        middle,
        yerr=[
            [median - low for median, low, _ in spans],
            [high - median for median, _, high in spans],
        ],
        capsize=2,
        markersize=4,
        **style,
    )


def _bars(result: Result, axes: Any, figure: str) -> None:
    """A group for each turn, a bar for each server."""
    turns = [size or 0 for size in result.sizes(figure)]
    named = _coloured(result)
    width = 0.8 / len(named)
    for at, (colour, server) in enumerate(named):
        heights = [
            statistics.median(list(result.values(figure, turn, server).values()) or [0.0])
            for turn in turns
        ]
        places = [turn - 0.4 + (at + 0.5) * width for turn in turns]
        axes.bar(places, heights, width * 0.9, color=colour, label=_label(result, server))
    axes.set(xlabel="turn", ylabel="first token, ms", xticks=turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    result = msgspec.json.decode(options.json.read_bytes(), type=Result)
    print(table(result))
    for name in PLOTS:
        for path in draw(result, name, options.out):
            print(path)


if __name__ == "__main__":
    main()
