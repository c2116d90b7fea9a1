"""Many chats at once against any OpenAI-compatible server: `python -m benchmarks.load --url URL`.

Each session is a client that keeps its history: it sends it whole, puts the reply behind it, thinks,
and goes on; now and then it edits its last message or asks for the reply again. All that is said is
a function of the seed, and replies have a forced length, so every server gets the same work.

So many requests are in flight at a time; who waits longest goes next, which makes the sessions take
turns. Waiting here counts for nothing but `waited_s`: a first token is timed from the request.
"""

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.client import Heard, Target, ask
from benchmarks.texts import message, text
from benchmarks.workloads import read_trace
from engine.kv.returns import MOONCAKE

QUANTILES = 200


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How many chats, how long, and how they go on."""

    sessions: int = 8
    turns: int = 8
    concurrency: int = 1
    system_words: int = 600
    shared: bool = True
    """One system prompt for all sessions, or one for each."""
    user_words: int = 36
    reply_tokens: int = 32
    edits: float = 0.0
    """Share of turns whose message is then edited."""
    regenerations: float = 0.0
    """Share of turns whose reply is asked for again."""
    gaps_s: tuple[float, ...] = ()
    """Pauses between a reply and what follows, to draw from. Empty: none, and all start at once."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What a client does next: says something new, or first unsays its last message or the last reply."""

    kind: str
    """`turn`, `edit` or `regeneration`."""
    turn: int
    text: str
    """Its message; of a regeneration none."""
    pause_s: float


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a run and what came of it."""

    session: int
    turn: int
    kind: str
    waited_s: float
    """From when the client wanted to send until it could."""
    heard: Heard


class Run(msgspec.Struct, frozen=True, kw_only=True):
    shape: Shape
    asked: list[Asked]
    wall_s: float
    driver_cpu_s: float
    """What this process itself computed meanwhile."""


def moves(shape: Shape, seed: str, session: int) -> Iterator[Move]:
    chance = random.Random(f"{seed} moves {session}")  # noqa: S311

    def pause_s() -> float:
        return chance.choice(shape.gaps_s) if shape.gaps_s else 0.0

    def said(kind: str, turn: int) -> str:
        return text(f"{seed} {kind} {session} {turn}", shape.user_words) + "?"

    for turn in range(shape.turns):
        # The first ones come in over a while, too.
        before_s = pause_s() if turn else pause_s() * chance.random()
        yield Move(kind="turn", turn=turn, text=said("turn", turn), pause_s=before_s)
        if chance.random() < shape.edits:
            yield Move(kind="edit", turn=turn, text=said("edit", turn), pause_s=pause_s())
        if chance.random() < shape.regenerations:
            yield Move(kind="regeneration", turn=turn, text="", pause_s=pause_s())


async def run(target: Target, shape: Shape, seed: str) -> Run:
    """All sessions from their first move to their last."""
    slots = asyncio.Semaphore(shape.concurrency)
    asked: list[Asked] = []

    async def session(number: int) -> None:
        whose = f"{seed} system {0 if shape.shared else number}"
        history = [message("system", text(whose, shape.system_words) + ".")]
        ids = [""]
        for move in moves(shape, seed, number):
            await asyncio.sleep(move.pause_s)
            _unsay(history, move)
            wanted_s = time.perf_counter()
            async with slots:
                heard = await ask(
                    target,
                    history,
                    shape.reply_tokens,
                    user=f"{seed} {number}",
                    previous=ids[(len(history) - 2) // 2],
                )
            history.append(message("assistant", heard.text))
            ids[len(history) // 2 :] = [heard.response_id]
            asked.append(
                Asked(
                    session=number,
                    turn=move.turn,
                    kind=move.kind,
                    waited_s=heard.sent_s - wanted_s,
                    heard=heard,
                )
            )

    started_s, cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for number in range(shape.sessions):
            group.create_task(session(number))
    return Run(
        shape=shape,
        asked=asked,
        wall_s=time.perf_counter() - started_s,
        driver_cpu_s=time.process_time() - cpu_s,
    )


def _unsay(history: list[dict[str, str]], move: Move) -> None:
    """Bring a history to where the move's reply belongs."""
    if move.kind != "turn":
        history.pop()
    if move.kind == "edit":
        history.pop()
    if move.kind != "regeneration":
        history.append(message("user", move.text))


# ---------------------------------------------------------------- what came of it


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over all sessions' requests of one turn."""

    turn: int
    first_token_ms: float
    prompt_tokens: float
    computed_tokens: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Later turns are those after the first, edits and regenerations with them."""

    requests: int
    wall_s: float
    prompt_tokens: int
    cached_tokens: int | None
    """None: the server does not tell."""
    computed_tokens: int
    output_tokens: int
    wrong_lengths: int
    """Replies that were not as long as was forced: where there are any, compare no times."""
    output_tokens_per_s: float
    first_turn_ms: float
    """First token of first turns, median; the others likewise."""
    later_ms: float | None
    later_p95_ms: float | None
    later_computed_tokens: float | None
    gap_ms: float
    """Between two pieces of text of a reply."""
    gap_p95_ms: float
    driver_share: float
    """Of one core, used by this driver itself."""
    by_turn: list[TurnSummary]


def summarise(done: Run) -> Summary:
    heard = [one.heard for one in done.asked]
    first = [one.heard for one in done.asked if one.turn == 0 and one.kind == "turn"]
    later = [one.heard for one in done.asked if one.turn > 0 or one.kind != "turn"]
    gaps = [b - a for one in heard for a, b in pairwise(one.pieces_s)] or [0.0]
    cached = [one.cached_tokens for one in heard if one.cached_tokens is not None]
    output = sum(one.output_tokens for one in heard)
    return Summary(
        requests=len(heard),
        wall_s=done.wall_s,
        prompt_tokens=sum(one.prompt_tokens for one in heard),
        cached_tokens=sum(cached) if len(cached) == len(heard) else None,
        computed_tokens=sum(one.computed_tokens for one in heard),
        output_tokens=output,
        wrong_lengths=sum(one.output_tokens != done.shape.reply_tokens for one in heard),
        output_tokens_per_s=output / done.wall_s,
        first_turn_ms=1e3 * statistics.median(one.first_token_s for one in first),
        later_ms=1e3 * statistics.median(one.first_token_s for one in later) if later else None,
        later_p95_ms=1e3 * p95([one.first_token_s for one in later]) if later else None,
        later_computed_tokens=statistics.median(o.computed_tokens for o in later)
        if later
        else None,
        gap_ms=1e3 * statistics.median(gaps),
        gap_p95_ms=1e3 * p95(gaps),
        driver_share=done.driver_cpu_s / done.wall_s,
        by_turn=[_of_turn(done, turn) for turn in range(done.shape.turns)],
    )


def _of_turn(done: Run, turn: int) -> TurnSummary:
    heard = [one.heard for one in done.asked if one.turn == turn and one.kind == "turn"]
    return TurnSummary(
        turn=turn + 1,
        first_token_ms=1e3 * statistics.median(one.first_token_s for one in heard),
        prompt_tokens=statistics.median(one.prompt_tokens for one in heard),
        computed_tokens=statistics.median(one.computed_tokens for one in heard),
    )


def p95(values: Sequence[float]) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * 95 // 100)]


# ---------------------------------------------------------------- pauses


def usual_gaps(scale: float) -> tuple[float, ...]:
    """Lognormal, as the engine's gap model has them, `scale` times as long."""
    normal = statistics.NormalDist(0.0, MOONCAKE.spread)
    return tuple(
        round(scale * MOONCAKE.gap_s * math.exp(normal.inv_cdf(at / QUANTILES)), 3)
        for at in range(1, QUANTILES)
    )


def trace_gaps(trace: Path, scale: float) -> tuple[float, ...]:
    """Quantiles of the gaps between the turns of a trace's conversations."""
    last: dict[str, float] = {}
    gaps: list[float] = []
    for turn in read_trace(trace).turns():
        if turn.session in last:
            gaps.append(turn.at_s - last[turn.session])
        last[turn.session] = turn.at_s
    return tuple(round(scale * gap, 3) for gap in statistics.quantiles(gaps, n=QUANTILES))


# ---------------------------------------------------------------- command


def arguments() -> argparse.ArgumentParser:
    usual = Shape()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="default")
    parser.add_argument("--key", default="")
    parser.add_argument("--stored", action="store_true", help="send what is new (`/responses`)")
    for name in ("sessions", "turns", "concurrency", "system-words", "user-words", "reply-tokens"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name.replace("-", "_")))
    parser.add_argument("--apart", action="store_true", help="a system prompt for each session")
    parser.add_argument("--edits", type=float, default=0.0, help="share of turns")
    parser.add_argument("--regenerations", type=float, default=0.0, help="share of turns")
    parser.add_argument("--think", type=float, help="think, so many times as long as users do")
    parser.add_argument("--trace", type=Path, help="whose gaps are the think times")
    parser.add_argument("--seed", default=str(time.time_ns()), help="another one is never cached")
    parser.add_argument("--json", type=Path, help="write every request here")
    return parser


def shape_of(options: argparse.Namespace) -> Shape:
    gaps_s: tuple[float, ...] = ()
    if options.trace:
        gaps_s = trace_gaps(options.trace, options.think or 1.0)
    elif options.think:
        gaps_s = usual_gaps(options.think)
    return Shape(
        sessions=options.sessions,
        turns=options.turns,
        concurrency=options.concurrency,
        system_words=options.system_words,
        shared=not options.apart,
        user_words=options.user_words,
        reply_tokens=options.reply_tokens,
        edits=options.edits,
        regenerations=options.regenerations,
        gaps_s=gaps_s,
    )


def main() -> None:
    options = arguments().parse_args()
    target = Target(url=options.url, model=options.model, key=options.key, stores=options.stored)
    done = asyncio.run(run(target, shape_of(options), options.seed))
    summary = summarise(done)
    print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    if options.json:
        whole = {"seed": options.seed, "summary": summary, "run": done}
        options.json.write_bytes(msgspec.json.encode(whole))


if __name__ == "__main__":
    main()
