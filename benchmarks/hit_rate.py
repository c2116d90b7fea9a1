"""Hit rates by memory size: the cache against LRU, a fixed time to live and the clairvoyant bound.

    python -m benchmarks.hit_rate TRACE.jsonl
    python -m benchmarks.hit_rate chat-small

Fits the gap model on the first half, scores on the second. Prints a table; `--out DIR` also writes
`NAME.json`, `NAME.png` and `NAME.svg`.
"""

import argparse
import json
from pathlib import Path

import msgspec

from benchmarks.gaps import fit
from benchmarks.profiles import PROFILES, generate
from benchmarks.replay import Policy, optimum, replay
from benchmarks.workloads import Workload, read_trace, reused_units
from engine.config import PREFIX_INDEXES
from engine.kv.returns import MOONCAKE, GapModel

SHARES = (1 / 12, 1 / 6, 1 / 3, 2 / 3, 1.0, 2.0)
"""Memory sizes, of what would be enough for all that is used again."""

TTL_S = 300.0

DISK = 4.0
"""How many times the memory the disk below it has, as the server's has by default."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Hit rates with so many units of memory, by policy."""

    units: int
    share: float
    rates: dict[str, float]

    def closed(self, policy: str) -> float | None:
        """Which part of the gap between LRU and the bound the policy closes."""
        gap = self.rates["optimum"] - self.rates["lru"]
        return (self.rates[policy] - self.rates["lru"]) / gap if gap > 0.001 else None


def policies(
    fitted: GapModel, *, signals: bool, index: str, disk: float = DISK
) -> dict[str, Policy]:
    named = {
        "lru": Policy(index=index),
        f"ttl {TTL_S:.0f} s": Policy(ttl_s=TTL_S, index=index),
        "cost": Policy(model=MOONCAKE, index=index),
        "cost, fitted": Policy(model=fitted, index=index),
    }
    if signals:
        named["lru, signals"] = Policy(heeds=True, index=index)
        named["cost, signals"] = Policy(model=MOONCAKE, heeds=True, index=index)
        named["cost, signals, disk"] = Policy(model=MOONCAKE, heeds=True, disk=disk, index=index)
    return named


def measure(workload: Workload, named: dict[str, Policy], shares: tuple[float, ...]) -> list[Row]:
    enough = reused_units(workload)
    rows = []
    for share in shares:
        units = max(1, round(enough * share))
        rates = {name: replay(workload, units, policy).rate for name, policy in named.items()}
        rates["whether"] = optimum(workload, units, knows_when=False).rate
        rates["optimum"] = optimum(workload, units).rate
        rows.append(Row(units=units, share=share, rates=rates))
    return rows


def table(rows: list[Row]) -> str:
    names = list(rows[0].rates)
    head = ["units", "of enough", *names, *(f"closed by {name}" for name in names[2:-1])]
    lines = [head, ["---:"] * len(head)]
    for row in rows:
        closed = (row.closed(name) for name in names[2:-1])
        lines.append(
            [
                f"{row.units}",
                f"{row.share:.2f}",
                *(f"{100 * rate:.1f} %" for rate in row.rates.values()),
                *("" if part is None else f"{100 * part:.0f} %" for part in closed),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(workload: Workload, rows: list[Row], path: Path) -> None:
    """Needs matplotlib: `pip install .[bench]`."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    tokens = [row.units * workload.unit_tokens / 1e6 for row in rows]
    for name in rows[0].rates:
        style = {"lru": "k--", "optimum": "k:"}.get(name, "o-")
        axes.plot(tokens, [100 * row.rates[name] for row in rows], style, label=name, ms=3)
    axes.set(xscale="log", xlabel="memory, million tokens", ylabel="hit rate, % of prompt tokens")
    axes.set_title(f"{workload.name}: second half")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help=f"a trace file, or one of {', '.join(PROFILES)}")
    parser.add_argument("--index", choices=PREFIX_INDEXES, default="radix")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--disk", type=float, default=DISK, help="times the memory, below it")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    synthetic = asked.source in PROFILES
    workload = generate(asked.source, asked.seed) if synthetic else read_trace(Path(asked.source))
    fitted = fit(workload)
    print(f"{workload.name}: gap model of the first half: {fitted}\n")
    signals = synthetic and PROFILES[asked.source].sockets
    named = policies(fitted, signals=signals, index=asked.index, disk=asked.disk)
    rows = measure(workload, named, tuple(asked.shares))
    print(table(rows))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        path = asked.out / workload.name
        report = {"workload": workload.name, "fitted": fitted, "rows": rows}
        path.with_suffix(".json").write_text(json.dumps(msgspec.to_builtins(report), indent=1))
        plot(workload, rows, path)


if __name__ == "__main__":
    main()
