"""The rows of a comparison: what is asked of one server in one round, and how much of it.

A row's texts are a function of its seed, so every server is asked the same, and none twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from benchmarks.client import Heard, ask
from benchmarks.load import Run, Shape, run, summarise
from benchmarks.peers import Memory, Server
from benchmarks.texts import message, text

NEW_WORDS = 28
"""With the template about 40 tokens: a turn of the history curve."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured; these are the full run's."""

    rounds: int = 3
    warm_up: Shape = Shape(sessions=8, turns=2, concurrency=8, system_words=300, reply_tokens=4)
    prefills: tuple[int, ...] = (512, 2048)
    streams: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    decode_tokens: int = 128
    histories: tuple[int, ...] = (100, 500, 1000, 2000, 4000, 8000)
    colds: tuple[int, ...] = (100, 1000, 2000)
    """Some of the histories."""
    chats: Shape = Shape(sessions=32, turns=4, concurrency=4)
    apart: Shape = Shape(sessions=16, turns=1, concurrency=4, shared=False)
    memory: Memory = Memory(slots=8, slot_tokens=8192)
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

    async def run(self, shape: Shape, *, stored: bool = False) -> Run:
        """`stored`: whoever can keep conversations does, and is sent what is new of them."""
        stores = stored and self.server.launch.stores
        target = msgspec.structs.replace(self.server.target, stores=stores)
        done = await run(target, shape, self.seed)
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
    for streams in (1,) if measure.server.launch.is_slow else measure.sizes.streams:
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
    """Only what is stored may be parked on disk, so here Keepwarm stores."""
    return _of_chats(await measure.run(measure.sizes.tight, stored=True), "tight_")


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
    await measure.run(measure.sizes.warm_up)
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
