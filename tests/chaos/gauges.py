"""What is measured of a server under load: times and when they were taken, health, what it holds.

Health is asked for by a process of its own: the load's is busy with five hundred sockets.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args

import httpx
import msgspec
import psutil

from app.errors import Code
from tests.chaos.counted import Living
from tests.kit.server import Server, signed_in

HEALTH = ("/health/live", "/health/ready")
HEALTH_PAUSE_S = 0.2
REST_S = 300.0
COUNT_S = 60.0
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "most": 1.0}

TYPED = set(get_args(Code)) - {"server_error"}
"""What an error may say. A `server_error` is what nobody foresaw."""


class _Refusal(msgspec.Struct):
    code: str | None = None
    error: "_Refusal | None" = None


class Tally:
    """All that the pages of a run measured and heard."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.times: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """Of each name: when it was over, and how many seconds it took."""
        self.served: dict[str, list[tuple[float, int]]] = defaultdict(list)
        """Of each person: when, and how many tokens were computed for them."""
        self.output: list[tuple[float, int]] = []
        self.stops: list[int] = []
        """By how many steps a stop came behind a question that was sent with it."""

    def clear(self) -> None:
        """Begin anew, but for faults."""
        for kept in (self.counts, self.times, self.served, self.output, self.stops):
            kept.clear()

    def took(self, name: str, began_s: float) -> None:
        now = time.monotonic()
        self.times[name].append((now, now - began_s))

    def told(self, code: str, words: str) -> None:
        """Somebody was told of an error; it is a fault where no page or program could know it."""
        self.counts[f"told {code}"] += 1
        if code not in TYPED:
            self.faults[words] += 1

    def refused(self, status: int, body: bytes | None) -> None:
        """Over HTTP: problem details, or the dialect's body."""
        code = "none"
        with contextlib.suppress(msgspec.MsgspecError):
            told = msgspec.json.decode(body or b"", type=_Refusal)
            code = told.code or (told.error or _Refusal()).code or "none"
        self.told(code, f"status {status} with {body!r}")


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Nothing where there are no values."""
    ranked = sorted(values)
    if not ranked:
        return {}
    return {
        name: round(ranked[max(0, math.ceil(share * len(ranked)) - 1)], 4)
        for name, share in QUANTILES.items()
    }


def over_time(tally: Tally, start_s: float, end_s: float, rows: int) -> list[dict[str, object]]:
    """Throughput and percentiles of so many equal parts of a run."""
    borders = [start_s + (end_s - start_s) * at / rows for at in range(rows + 1)]
    return [_row(tally, start_s, since, until) for since, until in pairwise(borders)]


def _row(tally: Tally, start_s: float, since: float, until: float) -> dict[str, object]:
    seconds = until - since
    times = {
        name: quantiles([took for at, took in taken if since <= at < until])
        for name, taken in tally.times.items()
    }
    written = sum(tokens for at, tokens in tally.output if since <= at < until)
    computed = sum(
        tokens for taken in tally.served.values() for at, tokens in taken if since <= at < until
    )
    ended = sum(since <= at < until for at, _ in tally.times["turn"])
    return {
        "from_s": round(since - start_s),
        "turns_per_s": round(ended / seconds, 2),
        "output_tokens_per_s": round(written / seconds, 1),
        "computed_tokens_per_s": round(computed / seconds, 1),
        **{name: found for name, found in times.items() if found},
    }


# ---------------------------------------------------------------- health


class Health:
    """What was answered: of each time when it was over, how long it took, and the status."""

    def __init__(self) -> None:
        self.answers: list[tuple[float, float, int]] = []


@contextlib.contextmanager
def watching_health(url: str) -> Iterator[Health]:
    """From another process, until the block ends."""
    health = Health()
    ours, theirs = multiprocessing.Pipe()
    watcher = multiprocessing.get_context("spawn").Process(target=_ask, args=(url, theirs))
    watcher.start()
    theirs.close()
    try:
        yield health
    finally:
        ours.send(None)
        health.answers = ours.recv()
        watcher.join()


def _ask(url: str, told: Connection) -> None:
    answers: list[tuple[float, float, int]] = []
    with httpx.Client(base_url=url, timeout=60) as client:
        while not told.poll(HEALTH_PAUSE_S):
            for path in HEALTH:
                began = time.monotonic()
                try:
                    status = client.get(path).status_code
                except httpx.TransportError:
                    status = 0
                now = time.monotonic()
                answers.append((now, now - began, status))
    told.send(answers)


# ---------------------------------------------------------------- what it holds


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the server and its engine hold when nobody wants anything.

    `database` counts handles on the database's files, which every connection has; `files` and
    `engine_files` all open ones, sockets and pipes with them.
    """

    memory_mib: float
    engine_memory_mib: float
    tasks: dict[str, int]
    objects: int
    files: int
    engine_files: int
    sockets: int
    database: int
    threads: int
    blocks: dict[str, int]


def engine_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.pid).children()
    return next(one for one in children if "engine" in one.cmdline())


def memory_mib(server: Server) -> tuple[float, float]:
    """Of the server and of its engine."""
    both = (psutil.Process(server.pid), engine_of(server))
    server_mib, engine_mib = (round(one.memory_info().rss / 2**20, 1) for one in both)
    return server_mib, engine_mib


def held(server: Server, living: Path) -> tuple[Held, Counter[str]]:
    """Waits until the server is at rest. Also its objects, by their type."""
    blocks = _blocks_at_rest(server)
    alive = _living(server, living)
    own, engine = psutil.Process(server.pid), engine_of(server)
    memory, engine_memory = memory_mib(server)
    database = sum(Path(one.path).name.startswith("keepwarm.db") for one in own.open_files())
    return (
        Held(
            memory_mib=memory,
            engine_memory_mib=engine_memory,
            tasks=alive.tasks,
            objects=sum(alive.objects.values()),
            files=own.num_fds(),
            engine_files=engine.num_fds(),
            sockets=sum(one.status == "ESTABLISHED" for one in own.net_connections("tcp")),
            database=database,
            threads=own.num_threads(),
            blocks=blocks,
        ),
        Counter(alive.objects),
    )


def _blocks_at_rest(server: Server) -> dict[str, int]:
    """No socket, no job, nothing on its way to another tier."""
    deadline = time.monotonic() + REST_S
    own = psutil.Process(server.pid)
    with signed_in(server) as client:
        while True:
            told = client.get("/api/status").raise_for_status().json()["stats"]
            blocks: dict[str, int] = told["blocks"]
            jobs = told["running_jobs"] + told["waiting_jobs"]
            # The one of this very client is open.
            open_sockets = sum(one.status == "ESTABLISHED" for one in own.net_connections("tcp"))
            if jobs == blocks["copying"] == 0 and open_sockets <= 1:
                return blocks
            if time.monotonic() > deadline:
                return blocks
            time.sleep(HEALTH_PAUSE_S)


def _living(server: Server, file: Path) -> Living:
    file.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR2)
    deadline = time.monotonic() + COUNT_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(HEALTH_PAUSE_S)
    return msgspec.json.decode(file.read_bytes(), type=Living)


def complaints(output: str) -> list[str]:
    """What a server logged as an error."""
    lines = [
        line for line in output.splitlines() if '"level": "error"' in line or "Traceback" in line
    ]
    return [f"the server logged {line[:8000]}" for line in lines]
