"""A house that is full: `python -m tests.chaos.load --seconds 600 --sockets 500 --streams 64 --seed 1`.

A real server with a small pool, and pages on it: `--streams` of them always want another answer, four
of each user, and one user wants sixty at once and waits for nothing; others show a conversation and
say something now and then; some read slowly or not at all, some flood. The sessions that are shown have
ten times as many tokens of their own as the pool holds.

What is promised, and what here counts as a breach:

    errors    whatever a client is told has a documented code, and a page that reads is not cut off;
              the server logs no error
    leaks     when all have gone: as many tasks, sockets and files as before, no block in use, no
              more handles on the database than its pool keeps, no more memory than `MEMORY_MIB`
    fairness  who always wants more is computed as many tokens as the others, within a tenth
    stop      is obeyed within a step: the step that it names is at most the one behind that of a
              question that was sent right after it, and is answered between two steps
    health    is told within a second, by a process that asks five times a second

Times are what a client sees: `accepted` until a turn is stored, `first token`, `gap` between pieces,
`stop` until it is acknowledged, `turn` until the end. The same seed says the same; what meets what
depends on the machine.
"""

import argparse
import asyncio
import contextlib
import functools
import statistics
import sys
import time
from collections import Counter
from typing import Any

import msgspec

from app.db.types import AccountRole
from engine.config import EngineConfig
from tests.chaos.crowd import restless, settings_for, unsound
from tests.chaos.gathering import Crowd, Gathering, Shape
from tests.chaos.gauges import (
    Held,
    Tally,
    complaints,
    held,
    memory_mib,
    over_time,
    quantiles,
    watching_health,
)
from tests.chaos.pages import Speaker
from tests.kit.server import Server, new_folder, spawn, started
from tests.kit.tab import Person, person

FILLING = 16
"""Pages that fill their sessions at a time."""
OTHER_TOKENS = 6
"""Of a session those that are not its first message: what the template writes, and the answer."""
ROWS = 10
SETTLED = 0.1
"""Of the run, until everybody has something in flight."""
MEMORY_S = 2.0
END_S = 300.0
GROWN = 10

HEALTH_S = 1.0
FAIR = 0.1
STEPS = 1
MEMORY_MIB = 64.0
"""More than before, of the server and of its engine: what Python and torch keep to use again."""
CONNECTIONS = 20
"""Handles of the database's files more than before: what its pool opened and keeps."""
MAX_RUNNING = next(
    one.default for one in msgspec.structs.fields(EngineConfig) if one.name == "max_running"
)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """It holds where there are no breaches."""

    breaches: list[str]
    seed: int
    shape: Shape
    sessions: int
    live_tokens: int
    pool_tokens: int
    filled_s: float
    counts: dict[str, int]
    times: dict[str, dict[str, float]]
    health: dict[str, float]
    stops: dict[str, float]
    """How many steps a stop came behind the question that was sent with it."""
    step_ms: float
    shares: dict[str, float]
    """Tokens of each who always wanted more, by their mean; `greedy` among them."""
    over_time: list[dict[str, Any]]
    memory_mib: list[tuple[int, float, float]]
    """Of server and engine, and when."""
    driver_share: float
    """Of one core, by this process itself."""
    before: Held
    after: Held
    grown: dict[str, int]
    """Python objects of the server that are more than before, by their type."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of itself."""

    boot_id: str
    pool_tokens: int
    steps: int
    step_s: float


async def told(admin: Person) -> Told:
    answer = (await admin.client.get("/api/status")).raise_for_status().json()
    card, stats = answer["card"], answer["stats"]
    return Told(
        boot_id=stats["boot_id"],
        pool_tokens=card["pool_blocks"] * card["block_tokens"],
        steps=stats["steps"],
        step_s=stats["step_s"],
    )


async def run(shape: Shape, seed: int, **settings: str) -> Report:
    """Fill, be at rest, live for so long, be at rest again."""
    tally, folder = Tally(), new_folder()
    living = folder / "living.json"
    start = functools.partial(spawn, module=("tests.chaos.counted", str(living)))
    given = {
        "KEEPWARM_KV_MEMORY": f"{shape.pool_mib}MiB",
        "KEEPWARM_SOCKETS_PER_ADDRESS": str(2 * shape.sockets),
        # Two threads of an engine wait for each other's core, and this program wants one.
        "KEEPWARM_THREADS": "1",
        **settings,
    }
    server = await asyncio.to_thread(started, start, folder, None, given)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(server)
        admin = await stack.enter_async_context(person(server, AccountRole.ADMIN))
        crowd = await Gathering(stack, server, tally).all(shape, seed)
        first = await told(admin)
        say(f"{len(crowd.sessions)} sessions on a pool of {first.pool_tokens} tokens")
        each = shape.times * first.pool_tokens / len(crowd.sessions)
        began = time.monotonic()
        await fill(crowd, max(1, round(each) - OTHER_TOKENS))
        filled_s = time.monotonic() - began
        before, old = await asyncio.to_thread(held, server, living)
        say(f"filled in {filled_s:.0f} s")
        tally.clear()
        life = await live(crowd, shape.seconds, server, admin)
        last = await told(admin)
        after, grown = await asyncio.to_thread(held, server, living)
        tally.faults.update(await asyncio.to_thread(restless, server))
        server.stop()
        tally.faults.update([*unsound(server), *complaints(server.output)])
    if first.boot_id != last.boot_id:
        tally.faults["the engine was lost and started again"] += 1
    if not life.ended:
        tally.faults["answers did not end"] += 1
    report = Report(
        breaches=[],
        seed=seed,
        shape=shape,
        sessions=len(crowd.sessions),
        live_tokens=sum(one.tokens for one in crowd.sessions),
        pool_tokens=first.pool_tokens,
        filled_s=round(filled_s),
        counts=dict(sorted(tally.counts.items())),
        times={name: quantiles([took for _, took in taken]) for name, taken in tally.times.items()},
        health=quantiles([took for _, took, _ in life.health]),
        stops=quantiles([float(one) for one in tally.stops]),
        step_ms=round(1e3 * (last.step_s - first.step_s) / max(1, last.steps - first.steps), 1),
        shares=shares(crowd, tally, life),
        over_time=over_time(tally, life.start_s, life.end_s, ROWS),
        memory_mib=life.memory[:: max(1, len(life.memory) // ROWS)],
        driver_share=round(life.driver_share, 2),
        before=before,
        after=after,
        grown=dict((grown - old).most_common(GROWN)),
    )
    statuses = {status for _, _, status in life.health}
    return msgspec.structs.replace(report, breaches=[*judged(report, statuses), *_named(tally)])


def _named(tally: Tally) -> list[str]:
    return [f"{fault} ({count} times)" for fault, count in tally.faults.most_common()]


def shares(crowd: Crowd, tally: Tally, life: "Life") -> dict[str, float]:
    """Of who always wanted more, by the mean of those who wanted as much as each other."""
    since = life.start_s + SETTLED * (life.end_s - life.start_s)
    got = {
        user: sum(tokens for at, tokens in tally.served[user] if since <= at < life.end_s)
        for user in (*crowd.users, crowd.greedy)
    }
    mean = statistics.mean(got[user] for user in crowd.users) or 1.0
    names = {user: f"user {number}" for number, user in enumerate(crowd.users)}
    return {(names | {crowd.greedy: "greedy"})[user]: round(n / mean, 3) for user, n in got.items()}


def judged(report: Report, statuses: set[int]) -> list[str]:
    """What was promised and is not so."""
    before, after = report.before, report.after
    unfair = {
        name: share
        for name, share in report.shares.items()
        if abs(share - 1) > FAIR and (name != "greedy" or report.shape.streams > MAX_RUNNING)
    }
    tasks = Counter(after.tasks) - Counter(before.tasks)
    blocks = {name: count for name, count in after.blocks.items() if name == "in_use" and count}
    found = {
        f"the sessions are less than {report.shape.times:g} times the pool": report.live_tokens
        < report.shape.times * report.pool_tokens,
        f"users were not served alike: {unfair}": bool(unfair),
        f"a stop came later than {STEPS} step: {report.stops}": report.stops.get("most", 0) > STEPS,
        f"health took longer than {HEALTH_S:g} s: {report.health}": report.health["most"]
        > HEALTH_S,
        f"health said {sorted(statuses)}": statuses != {200},
        f"tasks are left: {dict(tasks)}": bool(tasks),
        f"blocks are left: {blocks}": bool(blocks),
        f"sockets are left: {after.sockets}, before {before.sockets}": after.sockets
        > before.sockets,
        f"files are left: {after.files}, before {before.files}": after.files - after.database
        > before.files - before.database,
        f"the engine's files are left: {after.engine_files}, before {before.engine_files}": (
            after.engine_files > before.engine_files
        ),
        f"connections are left: {after.database}, before {before.database}": after.database
        > before.database + CONNECTIONS,
        f"memory grew: {after.memory_mib}, before {before.memory_mib}": after.memory_mib
        > before.memory_mib + MEMORY_MIB,
        f"the engine's memory grew: {after.engine_memory_mib}, before {before.engine_memory_mib}": (
            after.engine_memory_mib > before.engine_memory_mib + MEMORY_MIB
        ),
    }
    return [words for words, is_so in found.items() if is_so]


def say(words: str) -> None:
    sys.stderr.write(words + "\n")


async def fill(crowd: Crowd, words: int) -> None:
    """Every session gets a history; all its pages close behind it."""
    places = asyncio.Semaphore(FILLING)

    async def one(page: Speaker) -> None:
        async with places:
            await page.fill(words)

    async with asyncio.TaskGroup() as group:
        for page in (*crowd.speakers, *crowd.lookers):
            group.create_task(one(page))


class Life(msgspec.Struct, kw_only=True):
    """What was measured from outside while it lasted."""

    start_s: float
    end_s: float = 0.0
    ended: bool = False
    """Whether every answer did."""
    driver_share: float = 0.0
    memory: list[tuple[int, float, float]] = []
    health: list[tuple[float, float, int]] = []


async def live(crowd: Crowd, seconds: float, server: Server, admin: Person) -> Life:
    """All pages open, for so long; then until the last answer has ended."""
    ending, cpu_s = asyncio.Event(), time.process_time()
    life = Life(start_s=time.monotonic())

    async def steps() -> int:
        return (await told(admin)).steps

    with watching_health(server.url) as health, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds + END_S), asyncio.TaskGroup() as group:
            for page in crowd.speakers:
                group.create_task(page.speak(ending, steps))
            for page in crowd.lookers:
                group.create_task(page.look(ending, steps))
            for other in crowd.others:
                group.create_task(other(ending))
            while time.monotonic() < life.start_s + seconds:
                at = round(time.monotonic() - life.start_s)
                life.memory.append((at, *memory_mib(server)))
                await asyncio.sleep(MEMORY_S)
            life.end_s = time.monotonic()
            life.driver_share = (time.process_time() - cpu_s) / (life.end_s - life.start_s)
            ending.set()
        life.ended = True
    life.health = health.answers
    return life


def main() -> int:
    usual = Shape()
    parser = argparse.ArgumentParser(description="A house that is full.")
    for name in Shape.__struct_fields__:
        value = getattr(usual, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    asked = parser.parse_args()
    shape = Shape(**{name: getattr(asked, name) for name in Shape.__struct_fields__})
    with settings_for(asked.database) as settings:
        report = asyncio.run(run(shape, asked.seed, **settings))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    return 1 if report.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
