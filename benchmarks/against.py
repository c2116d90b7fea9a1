"""Keepwarm and every peer that is found here, interleaved in one run: `python -m benchmarks.against`.

Same model, same texts, same forced lengths. In each round every server is measured once, whoever
began the last round going last in the next; meanwhile the others are frozen. Servers start twice:
with room for everything, and with KV memory for a third of what the sessions come to (`tight`).

The model's weights are the same for everyone in bf16 unless a name says otherwise.
"""

import argparse
import asyncio
import contextlib
import datetime
import platform
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.client import Failed
from benchmarks.load import trace_gaps, usual_gaps
from benchmarks.peers import Launch, Server, busy_s, launches
from benchmarks.results import Result, Sample, table
from benchmarks.rows import QUICK, ROWS, TIGHT_ROWS, Measure, Row, Sizes, Values, warm_up
from tests.kit.server import ROOT


class Meter:
    """What else runs on the machine while a server is measured: noise for whoever it happens to."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._began_s = time.perf_counter()
        self._used_s = self._others_s()

    def others(self) -> float:
        """Their share of a core since it began."""
        wall_s = time.perf_counter() - self._began_s
        return max(0.0, self._others_s() - self._used_s) / wall_s

    def _others_s(self) -> float:
        return busy_s() - self._server.computed_s() - time.process_time()


class Comparison:
    """Gathers samples, round by round; `keep` is called after each, so that none is lost."""

    def __init__(self, seed: str, keep: Callable[["Comparison"], object]) -> None:
        self.seed = seed
        self._keep = keep
        self.samples: list[Sample] = []
        self.faults: list[str] = []
        self.servers: list[str] = []
        self.weights: dict[str, str] = {}

    async def compare(
        self, started: Sequence[Launch], sizes: Sizes, rows: Mapping[str, Row]
    ) -> None:
        """Start all of them, measure every row in every round, end them."""
        async with self._running(started) as servers:
            for server in servers:
                await self._measure(self._part(server, sizes, 0, "warm-up"), warm_up)
            for number in range(sizes.rounds):
                at = number % len(servers)
                for name, row in rows.items():
                    for server in (*servers[at:], *servers[:at]):
                        if number == 0 or not server.launch.is_slow:
                            await self._measure(self._part(server, sizes, number, name), row)
                self._keep(self)
            peak = "tight_peak" if "tight" in rows else "peak"
            for server in servers:
                self._add(server, 0, [(peak, None, server.peak_mib())])

    @contextlib.asynccontextmanager
    async def _running(self, launches: Sequence[Launch]) -> AsyncIterator[list[Server]]:
        servers: list[Server] = []
        try:
            for launch in launches:
                try:
                    server = await Server.start(launch)
                except (OSError, Failed) as error:
                    print(f"{launch.name}: skipped; {error}", flush=True)
                    continue
                servers.append(server)
                self._add(server, 0, [("start", None, server.first_token_s)])
                if server.name not in self.servers:
                    self.servers.append(server.name)
                    self.weights[server.name] = launch.weights
                print(f"{server.name}: up after {server.first_token_s:.1f} s", flush=True)
                server.freeze()
            yield servers
        finally:
            for server in servers:
                await server.stop()

    def _part(self, server: Server, sizes: Sizes, number: int, name: str) -> Measure:
        seed = f"{self.seed} {number} {name}"
        return Measure(server=server, sizes=sizes, seed=seed, round=number, faults=self.faults)

    async def _measure(self, measure: Measure, row: Row) -> None:
        server = measure.server
        server.thaw()
        began = Meter(server)
        try:
            values = [*await row(measure), ("others", None, 100 * began.others())]
        finally:
            server.freeze()
        self._add(server, measure.round, values)
        told = ", ".join(
            f"{f}{'' if size is None else f' {size}'} {v:.4g}" for f, size, v in values
        )
        print(f"{measure.seed}, {server.name}: {told}", flush=True)

    def _add(self, server: Server, number: int, values: Values) -> None:
        self.samples += [
            Sample(figure=figure, size=size, server=server.name, round=number, value=value)
            for figure, size, value in values
        ]


# ---------------------------------------------------------------- command


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


def now() -> str:
    return datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def result_of(
    comparison: Comparison, options: Mapping[str, object], model: str, date: str
) -> Result:
    return Result(
        machine=machine(),
        date=date,
        commit=commit(),
        model=model,
        options={key: str(value) for key, value in options.items() if key != "json"},
        servers=comparison.servers,
        samples=comparison.samples,
        weights=comparison.weights,
        faults=comparison.faults,
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes, for a first look")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", nargs="*", default=[*ROWS, *TIGHT_ROWS])
    parser.add_argument("--only", nargs="*", default=[], help="names of servers begin so")
    parser.add_argument("--think", type=float, default=0.02, help="so many times as long as users")
    parser.add_argument("--trace", type=Path, help="whose gaps are the think times")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--set", default="", help="Keepwarm's: KEEPWARM_NAME=VALUE,...")
    parser.add_argument(
        "--also",
        nargs="*",
        default=["KEEPWARM_WEIGHTS=dtype"],
        help="Keepwarm once more, set otherwise; by default with weights in bfloat16 alone",
    )
    parser.add_argument("--json", type=Path, default=Path("against.json"))
    return parser


async def compare(options: argparse.Namespace) -> Result:
    """Compare as the options say; what is known is in the file after each round."""
    sizes = QUICK if options.quick else Sizes()
    gaps_s = (
        trace_gaps(options.trace, options.think) if options.trace else usual_gaps(options.think)
    )
    sizes = msgspec.structs.replace(
        sizes,
        rounds=options.rounds or sizes.rounds,
        tight=msgspec.structs.replace(sizes.tight, gaps_s=gaps_s),
    )
    date = now()

    def keep(comparison: Comparison) -> Result:
        result = result_of(comparison, vars(options), "SmolLM2-135M-Instruct", date)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
        return result

    comparison = Comparison(options.seed, keep)
    for memory, rows in ((sizes.memory, ROWS), (sizes.tight_memory, TIGHT_ROWS)):
        chosen = {name: row for name, row in rows.items() if name in options.rows}
        if chosen:
            found = [
                launch
                for launch in launches(memory, options.set, *options.also)
                if not options.only or launch.name.startswith(tuple(options.only))
            ]
            await comparison.compare(found, sizes, chosen)
    return keep(comparison)


def main() -> None:
    options = arguments().parse_args()
    # Ended politely, whoever was started is ended too, with the processes that they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = asyncio.run(compare(options))
    print(f"\n{result.machine}, {result.date}, {result.commit}\n\n{table(result)}")
    for fault in result.faults:
        print(f"FAULT {fault}")


if __name__ == "__main__":
    main()
