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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.client import Failed, Heard, ask
from benchmarks.load import Run, Shape, run, summarise, trace_gaps, usual_gaps
from benchmarks.peers import Launch, Memory, Server, busy_s, launches
from benchmarks.results import Result, Sample, table
from benchmarks.texts import message, text
from tests.kit.server import ROOT

NEW_WORDS = 28
"""With the template about 40 tokens: a turn of the history curve."""
ROOMY = Memory(slots=8, slot_tokens=8192)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured; these are the full run's."""

    rounds: int = 5
    prefills: tuple[int, ...] = (512, 2048)
    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    decode_tokens: int = 128
    histories: tuple[int, ...] = (100, 500, 1000, 2000, 4000, 8000)
    colds: tuple[int, ...] = (100, 1000, 2000)
    """Some of the histories."""
    chats: Shape = Shape(sessions=32, turns=4, concurrency=4)
    apart: Shape = Shape(sessions=16, turns=1, concurrency=4, shared=False)
    tight: Shape = Shape(sessions=32, turns=4, concurrency=4)
    tight_memory: Memory = Memory(slots=4, slot_tokens=1024, aside_mib=0)
    """A third of the 11,000 tokens that they come to is 3,700; four slots take a little more."""


QUICK = Sizes(
    rounds=2,
    prefills=(512,),
    streams=(1, 8),
    decode_tokens=48,
    histories=(100, 2000),
    colds=(2000,),
    chats=Shape(sessions=12, turns=3, concurrency=4),
    apart=Shape(sessions=6, turns=1, concurrency=4, shared=False),
    tight=Shape(sessions=12, turns=3, concurrency=2),
    tight_memory=Memory(slots=2, slot_tokens=896, aside_mib=0),
)

Values = list[tuple[str, int | None, float]]
"""Figure, its size if it has one, value."""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One server in one round of one row."""

    server: Server
    sizes: Sizes
    seed: str
    round: int
    faults: list[str]

    async def ask(self, name: str, words: int, tokens: int) -> Heard:
        """A conversation of one turn that nobody had before."""
        said = [message("user", text(f"{self.seed} {name}", words))]
        return self.checked(await ask(self.server.target, said, tokens), tokens)

    async def run(self, shape: Shape) -> Run:
        done = await run(self.server.target, shape, self.seed)
        for one in done.asked:
            self.checked(one.heard, shape.reply_tokens)
        return done

    def checked(self, heard: Heard, tokens: int) -> Heard:
        if heard.output_tokens != tokens:
            self.faults.append(
                f"{self.server.name}, round {self.round}: {heard.output_tokens} tokens "
                f"instead of {tokens}"
            )
        return heard


# ---------------------------------------------------------------- rows


async def prefill(measure: Measure) -> Values:
    glue = (await measure.ask("glue", 16, 1)).prompt_tokens - 16
    values: Values = []
    for tokens in measure.sizes.prefills:
        heard = await measure.ask(f"prefill {tokens}", tokens - glue, 1)
        values.append(("prefill", tokens, heard.computed_tokens / heard.first_token_s))
    return values


async def decode(measure: Measure) -> Values:
    values: Values = []
    for streams in measure.sizes.streams:
        heard = await asyncio.gather(
            *(
                measure.ask(f"decode {streams} {number}", 24, measure.sizes.decode_tokens)
                for number in range(streams)
            )
        )
        values.append(("decode", streams, decoded_per_s(heard)))
    return values


def decoded_per_s(heard: Sequence[Heard]) -> float:
    """While all streams decode; from the first to the last piece where they never all do."""
    start, end = max(one.pieces_s[0] for one in heard), min(one.pieces_s[-1] for one in heard)
    if end <= start:
        start, end = min(o.pieces_s[0] for o in heard), max(o.pieces_s[-1] for o in heard)
    # A piece of text may hold several tokens, or a token no text.
    tokens = sum(
        one.output_tokens * sum(start < at <= end for at in one.pieces_s) / len(one.pieces_s)
        for one in heard
    )
    return tokens / (end - start)


async def history(measure: Measure) -> Values:
    """A turn of about 40 new tokens behind so many, and so many from nothing."""
    warm_ms: dict[int, float] = {}
    cold_ms: dict[int, float] = {}
    for tokens in measure.sizes.histories:
        name = f"{measure.seed} history {tokens}"
        said = [message("user", text(name, tokens - 50))]
        target = measure.server.target
        first = measure.checked(await ask(target, said, 2, user=name), 2)
        said += [message("assistant", first.text), message("user", text(f"{name} on", NEW_WORDS))]
        then = measure.checked(await ask(target, said, 2, user=name), 2)
        warm_ms[tokens] = 1e3 * then.first_token_s
    for tokens in measure.sizes.colds:
        heard = await measure.ask(f"cold {tokens}", tokens, 2)
        cold_ms[tokens] = 1e3 * heard.first_token_s
    shortest_ms = warm_ms[min(warm_ms)]
    return [
        *(("warm", tokens, ms) for tokens, ms in warm_ms.items()),
        *(("flat", tokens, ms / shortest_ms) for tokens, ms in warm_ms.items()),
        *(("cold", tokens, ms) for tokens, ms in cold_ms.items()),
        *(("spared", tokens, cold_ms[tokens] / warm_ms[tokens]) for tokens in cold_ms),
    ]


async def chats(measure: Measure) -> Values:
    before_mib = measure.server.resident_mib()
    values = _of_chats(await measure.run(measure.sizes.chats), "")
    if measure.round == 0:
        # Later ones live in memory that this one has asked for.
        added_kib = 1024 * (measure.server.resident_mib() - before_mib)
        values.append(("session", None, added_kib / measure.sizes.chats.sessions))
    return values


async def tight_chats(measure: Measure) -> Values:
    return _of_chats(await measure.run(measure.sizes.tight), "tight_")


async def apart(measure: Measure) -> Values:
    summary = summarise(await measure.run(measure.sizes.apart))
    return [("apart", None, summary.output_tokens_per_s)]


def _of_chats(done: Run, prefix: str) -> Values:
    summary = summarise(done)
    figures = {
        "later": summary.later_ms,
        "later_p95": summary.later_p95_ms,
        "output": summary.output_tokens_per_s,
        "computed": summary.later_computed_tokens,
    }
    values: Values = [
        (prefix + figure, None, value) for figure, value in figures.items() if value is not None
    ]
    values += [(f"{prefix}turn", row.turn, row.first_token_ms) for row in summary.by_turn]
    return [*values, ("driver", None, 100 * summary.driver_share)]


async def warm_up(measure: Measure) -> Values:
    """What a server computes for the first time is slow once; nothing of this is told."""
    shape = Shape(sessions=8, turns=2, concurrency=8, system_words=300, reply_tokens=4)
    await measure.run(shape)
    return []


Row = Callable[[Measure], Awaitable[Values]]
ROWS: Mapping[str, Row] = {
    "prefill": prefill,
    "decode": decode,
    "history": history,
    "chats": chats,
    "apart": apart,
}
TIGHT_ROWS: Mapping[str, Row] = {"tight": tight_chats}


# ---------------------------------------------------------------- rounds


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
    """Gathers samples, round by round."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.samples: list[Sample] = []
        self.faults: list[str] = []
        self.servers: list[str] = []

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
                        await self._measure(self._part(server, sizes, number, name), row)
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


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes, for a first look")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", nargs="*", default=[*ROWS, *TIGHT_ROWS])
    parser.add_argument("--only", nargs="*", default=[], help="names of servers begin so")
    parser.add_argument("--think", type=float, default=0.02, help="so many times as long as users")
    parser.add_argument("--trace", type=Path, help="whose gaps are the think times")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--set", nargs="*", default=[], help="Keepwarm's: KEEPWARM_NAME=VALUE")
    parser.add_argument("--json", type=Path, default=Path("against.json"))
    return parser


async def compare(options: argparse.Namespace) -> Result:
    sizes = QUICK if options.quick else Sizes()
    sizes = msgspec.structs.replace(sizes, rounds=options.rounds or sizes.rounds)
    gaps_s = (
        trace_gaps(options.trace, options.think) if options.trace else usual_gaps(options.think)
    )
    thoughtful = msgspec.structs.replace(sizes.tight, gaps_s=gaps_s)
    sizes = msgspec.structs.replace(sizes, tight=thoughtful)
    comparison = Comparison(options.seed)
    for memory, rows in ((ROOMY, ROWS), (sizes.tight_memory, TIGHT_ROWS)):
        chosen = {name: row for name, row in rows.items() if name in options.rows}
        if chosen:
            settings = dict(one.split("=", 1) for one in options.set)
            found = [
                launch
                for launch in launches(memory, settings)
                if not options.only or launch.name.startswith(tuple(options.only))
            ]
            await comparison.compare(found, sizes, chosen)
    return Result(
        machine=machine(),
        date=datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=commit(),
        model="SmolLM2-135M-Instruct",
        options={key: str(value) for key, value in vars(options).items() if key != "json"},
        servers=comparison.servers,
        samples=comparison.samples,
        faults=comparison.faults,
    )


def main() -> None:
    options = arguments().parse_args()
    # Ended politely, whoever was started is ended too, with the processes that they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = asyncio.run(compare(options))
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    print(f"\n{result.machine}, {result.date}, {result.commit}\n\n{table(result)}")
    for fault in result.faults:
        print(f"FAULT {fault}")


if __name__ == "__main__":
    main()
