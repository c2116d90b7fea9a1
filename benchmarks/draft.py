"""The first token after a long typed message, with drafts on and off: `python -m benchmarks.draft`.

To reach with drafts: a median below two decode steps and 10 ms, where a step is the median time
between two tokens of the same replies. A whole server is measured over its socket, from the page's
`turn.create` to the first delta: database, processes and framing inside. Key times are seeded, a draft
goes out as the page sends it, and Enter comes within 100 ms of the last key.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from app.chat.typed import is_finished
from app.db.types import AccountRole
from app.events import ResponseEnded, TextDelta
from app.frames import Draft, Event, TurnCreate
from app.ids import ConversationId, MessageId
from tests.kit.server import start_server
from tests.kit.tab import Person, Tab, person

PAUSE_S, EVERY_S = 0.25, 1.0
"""A draft goes out after a pause, and so often while keys come; at once where a key closes a sentence,
as the last one does here: `web/src/lib/typing.ts`."""
ENTER_S = 0.1
REPLY_TOKENS = 16
WORDS = (
    "harbour keeper lamp wind tide ship captain island morning letter storm bell rope signal night"
    " crossing weather pilot anchor channel beacon winter journey compass village stone bridge"
)


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to the first delta and between the following ones, and what was computed."""

    first_s: float
    steps_s: tuple[float, ...]
    prompt_tokens: int
    computed_tokens: int


def message(chance: random.Random) -> str:
    """About 200 tokens, like no other."""
    return " ".join(chance.choices(WORDS.split(), k=190)).capitalize() + "?"


def key_times(chance: random.Random, keys: int, mean_s: float) -> list[float]:
    """When each key comes: gaps are log-normal, as those of typists are."""
    return list(accumulate(mean_s * chance.lognormvariate(-0.125, 0.5) for _ in range(keys)))


def draft_times(keys: Sequence[float], typed_text: str) -> list[tuple[float, int]]:
    """When a draft goes out, and of how many keys."""
    sent: list[tuple[float, int]] = []
    first_unsent = keys[0]
    for typed, (at, following) in enumerate(zip(keys, [*keys[1:], float("inf")], strict=True), 1):
        due = min(at + PAUSE_S, max(first_unsent + EVERY_S, at))
        if is_finished(typed_text[:typed]):
            due = at
        if due < following:
            sent.append((due, typed))
            first_unsent = following
    return sent


async def converse(
    somebody: Person, tab: Tab, chance: random.Random, options: argparse.Namespace, *, drafts: bool
) -> Heard:
    """One message in a conversation of its own, typed and sent, and the beginning of its reply."""
    conversation_id = await somebody.conversation()
    await tab.subscribe(conversation_id)
    accepted = await tab.say(conversation_id, "Hello.")
    await tab.taste(accepted.response.id)
    parent_id, text = accepted.response.message_id, message(chance)
    keys = key_times(chance, options.keys, options.key_ms / 1000)
    already = len(text) - len(keys)
    started = time.perf_counter()
    if drafts:
        await type_in(tab, conversation_id, parent_id, text[:already])
        for at, typed in draft_times(keys, text[already:]):
            if at > keys[-1]:
                break
            await asyncio.sleep(started + at - time.perf_counter())
            await type_in(tab, conversation_id, parent_id, text[: already + typed])
    enter = keys[-1] + chance.uniform(0, ENTER_S)
    await asyncio.sleep(max(0.0, started + enter - time.perf_counter()))
    return await send(tab, conversation_id, parent_id, text)


async def type_in(
    tab: Tab, conversation_id: ConversationId, parent_id: MessageId, text: str
) -> None:
    await tab.send(Draft(conversation_id=conversation_id, parent_id=parent_id, text=text))


async def send(tab: Tab, conversation_id: ConversationId, parent_id: MessageId, text: str) -> Heard:
    frame = TurnCreate(
        request_id=tab.name(),
        conversation_id=conversation_id,
        client_message_id=f"b{time.perf_counter_ns()}",
        parent_id=parent_id,
        text=text,
    )
    times = [time.perf_counter()]
    await tab.send(frame)
    while True:
        heard = await tab.expect(Event, lambda one: one.conversation_id == conversation_id)
        if isinstance(heard.event, TextDelta):
            times.append(time.perf_counter())
            if len(times) == REPLY_TOKENS:
                await tab.cancel(heard.response_id)
        elif isinstance(heard.event, ResponseEnded):
            break
    receipt = heard.event.response.receipt
    assert receipt is not None
    first, *steps = (b - a for a, b in pairwise(times))
    return Heard(
        first_s=first,
        steps_s=tuple(steps),
        prompt_tokens=receipt.prompt_tokens,
        computed_tokens=receipt.computed_tokens,
    )


def report(name: str, heard: Sequence[Heard]) -> None:
    first = sorted(one.first_s * 1000 for one in heard)
    p10, p90 = first[len(first) // 10], first[len(first) * 9 // 10]
    computed = statistics.median(one.computed_tokens for one in heard)
    prompt = statistics.median(one.prompt_tokens for one in heard)
    print(
        f"{name:<12} first token: median {statistics.median(first):6.1f} ms, "
        f"p10 {p10:6.1f}, p90 {p90:6.1f}; computed {computed:.0f} of {prompt:.0f} tokens"
    )


async def measure(options: argparse.Namespace) -> None:
    chance = random.Random(options.seed)  # noqa: S311
    settings: dict[str, Any] = {}
    if options.threads is not None:
        settings["KEEPWARM_THREADS"] = str(options.threads)
    with start_server(**settings) as server:
        async with person(server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
            runs: dict[bool, list[Heard]] = {True: [], False: []}
            await converse(somebody, tab, chance, options, drafts=True)
            for _ in range(options.messages):
                for drafts in (True, False):
                    heard = await converse(somebody, tab, chance, options, drafts=drafts)
                    runs[drafts].append(heard)
    step_ms = 1000 * statistics.median(
        s for heard in runs.values() for one in heard for s in one.steps_s
    )
    report("drafts on", runs[True])
    report("drafts off", runs[False])
    print(f"decode step: median {step_ms:.1f} ms; to reach: {2 * step_ms + 10:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--keys", type=int, default=100, help="typed; what is before is pasted")
    parser.add_argument("--key-ms", type=float, default=100.0, help="mean time between two keys")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
