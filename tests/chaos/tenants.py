"""What tells of another's texts: `python -m tests.chaos.tenants --trials 100 --seed 1`.

In each trial a coin decides whether a victim sends the very text that an attacker then guesses, or
another of as many tokens. The attacker has another account and sees all that a member sees: times,
`cached_tokens`, receipts, whose turn comes first, what is left of an own conversation, what a search
takes. An accomplice may see figures, which is more than a member may. Whatever is seen is held against
the coin: what is the same in every trial tells nothing, of all else the ranks must not tell the two
kinds of trials apart (`ranks`), and it is said how little would have been found.

The same is done to a server with one scope for all (`unscoped`), where the leak must be found.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from statistics import median
from typing import Any

import httpx
import msgspec

from app.db.types import AccountRole
from app.events import ResponseEnded, TextDelta
from app.frames import Draft
from app.ids import ConversationId, MessageId
from tests.chaos.ranks import found_shift, p_value
from tests.kit.server import Server, start_server
from tests.kit.tab import Person, Tab, person

FALSE_ALARMS = 0.01
"""How likely it is that any channel of a run without a leak is called one."""
POWER = 0.9
GROUPS = 32
"""Of six digits in a text: each is a token, so all texts have as many, and none is guessed by chance."""
SEARCHES = 5
LONG_WORDS = 1_500
"""More than any context holds: it is refused as soon as it is read."""
SETTINGS = {"KEEPWARM_KV_MEMORY": "128MiB", "KEEPWARM_PARK_DISK": "256MiB"}
UNSCOPED = "tests.chaos.unscoped"

Seen = dict[str, float | str]
"""By the name of the channel: numbers are ranked, of words it is counted how often they come."""


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """What one channel told of the coin. `found`: the least difference that would have been found."""

    name: str
    leaks: bool
    same: str | None = None
    """What was seen in every trial; None: not the same in all."""
    p: float | None = None
    guessed: float | None = None
    """The median where the guess was right, and"""
    other: float | None = None
    """where it was not."""
    found: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """It holds where `faults` is empty."""

    seconds: float
    trials: int
    alpha: float
    scoped: tuple[Channel, ...]
    unscoped: tuple[Channel, ...]
    faults: list[str]


# ---------------------------------------------------------------- who takes part


class Tenant:
    """One account: its browser with one tab, and a key for the dialect."""

    def __init__(self, person: Person, tab: Tab, dialect: httpx.AsyncClient) -> None:
        self.person = person
        self.tab = tab
        self.dialect = dialect

    async def conversation(self) -> ConversationId:
        conversation_id = await self.person.conversation()
        await self.tab.subscribe(conversation_id)
        return conversation_id

    async def say(
        self, conversation_id: ConversationId, text: str, parent_id: MessageId | None = None
    ) -> "Answer":
        """Up to the first words of the answer; no more is wanted."""
        began = time.perf_counter()
        accepted = await self.tab.say(conversation_id, text, parent_id)
        await self.tab.event(accepted.response.id, TextDelta)
        first = time.perf_counter()
        await self.tab.cancel(accepted.response.id)
        ended = await self.tab.event(accepted.response.id, ResponseEnded)
        return Answer(first_s=first - began, at=first, ended=ended)

    async def post(self, path: str, **body: Any) -> tuple[float, httpx.Response]:
        began = time.perf_counter()
        answer = await self.dialect.post(path, json={"model": "default", **body})
        return time.perf_counter() - began, answer


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: when its first words came."""

    first_s: float
    at: float
    ended: ResponseEnded

    def seen(self, way: str) -> Seen:
        receipt = self.ended.response.receipt
        assert receipt is not None
        by_source = msgspec.json.encode(receipt.cached_by_source).decode()
        return {
            f"{way}: receipt": f"{receipt.cached_tokens} of {receipt.prompt_tokens}, restored "
            f"{receipt.restored_tokens}, {by_source}, {receipt.miss_reason} {receipt.differs_at}",
            f"{way}: first words, s": self.first_s,
            f"{way}: prefill as told, s": receipt.prefill_s,
            f"{way}: queue as told, s": receipt.queue_s,
        }


class Trials:
    """One server's people, and what the attacker sees in one trial after the other."""

    def __init__(self, seed: int, people: Sequence[Tenant], auditor: Person) -> None:
        self.victim, self.attacker, self.bystander = people
        self._auditor = auditor
        self._draw = random.Random(seed)  # noqa: S311
        self._left: tuple[ConversationId, MessageId] | None = None
        """Where the attacker was in the trial before."""

    async def one(self, coin: bool) -> Seen:
        """What is seen where the guess is right, or is not."""
        seen = Seen()
        for way in (
            self._turn,
            self._line,
            self._instructions,
            self._history,
            self._refusal,
            self._search,
        ):
            seen |= await way(coin)
        return seen

    def _texts(self, coin: bool) -> tuple[str, str]:
        """What the victim sends, and what is guessed."""
        guess, other = self._text(), self._text()
        return (guess if coin else other), guess

    def _text(self) -> str:
        return " ".join(f"{self._draw.randrange(10**6):06}" for _ in range(GROUPS))

    async def _turn(self, coin: bool) -> Seen:
        """As a turn of the page, typed before it is sent; an accomplice looks at all figures."""
        sent, guess = self._texts(coin)
        victims = await self.victim.conversation()
        await self.victim.tab.send(Draft(conversation_id=victims, parent_id=None, text=sent))
        await self.victim.say(victims, sent)
        mine = await self.attacker.conversation()
        before = await self._figures()
        answer = await self.attacker.say(mine, guess)
        after = await self._figures()
        told = {f"figures: {name}": after[name] - before[name] for name in after}
        earlier, self._left = self._left, (mine, answer.ended.response.message_id)
        returned = await self._return(*earlier) if earlier else {}
        return answer.seen("turn") | told | returned

    async def _return(self, conversation_id: ConversationId, leaf_id: MessageId) -> Seen:
        """To the conversation of the trial before: what the victim's texts have pushed out of it."""
        answer = await self.attacker.say(conversation_id, "And then?", leaf_id)
        receipt = answer.ended.response.receipt
        assert receipt is not None
        return {
            "return: computed tokens": receipt.computed_tokens,
            "return: restored tokens": receipt.restored_tokens,
            "return: first words, s": answer.first_s,
        }

    async def _line(self, coin: bool) -> Seen:
        """Behind the victim's turn while that is computed, and before somebody else's."""
        sent, guess = self._texts(coin)
        conversations = [
            await one.conversation() for one in (self.victim, self.attacker, self.bystander)
        ]
        victim, attacker, bystander = await asyncio.gather(
            self.victim.say(conversations[0], sent),
            self.attacker.say(conversations[1], guess),
            self.bystander.say(conversations[2], self._text()),
        )
        return {
            "line: before the bystander": float(attacker.at < bystander.at),
            "line: behind the victim, s": attacker.at - victim.at,
            "line: first words, s": attacker.first_s,
        }

    async def _instructions(self, coin: bool) -> Seen:
        """Under one `prompt_cache_key`, which both have."""
        sent, guess = self._texts(coin)
        body = {"input": "Hello.", "max_output_tokens": 1, "prompt_cache_key": "ours"}
        await self.victim.post("/v1/responses", instructions=sent, **body)
        taken_s, answer = await self.attacker.post("/v1/responses", instructions=guess, **body)
        return {
            "instructions: usage": str(answer.raise_for_status().json()["usage"]),
            "instructions: answer, s": taken_s,
        }

    async def _history(self, coin: bool) -> Seen:
        """As a whole history that is sent again: what of it was said before is found by its words."""
        sent, guess = self._texts(coin)
        for tenant, text in ((self.victim, sent), (self.victim, sent), (self.attacker, guess)):
            messages = [
                {"role": "user", "content": text},
                {"role": "assistant", "content": "So it is."},
                {"role": "user", "content": "And then?"},
            ]
            taken_s, answer = await tenant.post(
                "/v1/chat/completions", messages=messages, max_tokens=1
            )
        return {
            "history: usage": str(answer.raise_for_status().json()["usage"]),
            "history: answer, s": taken_s,
        }

    async def _refusal(self, coin: bool) -> Seen:
        """What is too long is refused at once: nothing but the reading takes time."""
        texts = [
            " ".join(f"{self._draw.getrandbits(40):x}" for _ in range(LONG_WORDS)) for _ in range(2)
        ]
        body = {"input": "Hello.", "max_output_tokens": 1}
        await self.victim.post("/v1/responses", instructions=texts[not coin], **body)
        taken_s, answer = await self.attacker.post("/v1/responses", instructions=texts[0], **body)
        return {
            "refusal: code": str(answer.json()["error"]["code"]),
            "refusal: answer, s": taken_s,
        }

    async def _search(self, coin: bool) -> Seen:
        """For a word of the text, which only the victim may have written."""
        sent, guess = self._texts(coin)
        await self.victim.say(await self.victim.conversation(), sent)
        times = []
        for _ in range(SEARCHES):
            began = time.perf_counter()
            answer = await self.attacker.person.client.get(
                "/api/search", params={"words": guess.split()[0]}
            )
            times.append(time.perf_counter() - began)
        return {
            "search: found": str(len(answer.raise_for_status().json()["items"])),
            "search: answer, s": min(times),
        }

    async def _figures(self) -> dict[str, float]:
        """All that is counted over all users, once nothing moves."""
        while True:
            told = (await self._auditor.client.get("/api/status")).raise_for_status().json()
            stats = told["stats"]
            if stats["running_jobs"] == stats["waiting_jobs"] == 0:
                break
            await asyncio.sleep(0.05)
        tree = (
            (await self._auditor.client.get("/api/admin/prefixes?limit=5000"))
            .raise_for_status()
            .json()
        )
        nodes = tree["nodes"]
        sums = {
            "nodes": len(nodes),
            "node tokens": sum(one["tokens"] for one in nodes),
            "node hits": sum(one["hits"] for one in nodes),
            "node paths": sum(one["paths"] for one in nodes),
        }
        return dict(_numbers(stats)) | sums


def _numbers(told: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Counters by their path; what a sum of times is says nothing that the times do not."""
    if isinstance(told, dict):
        for key, part in told.items():
            yield from _numbers(part, f"{name}.{key}" if name else key)
    elif isinstance(told, int | float) and not name.endswith(("_s", ".sum")):
        yield name, told


# ---------------------------------------------------------------- one server


@contextlib.asynccontextmanager
async def trials_at(server: Server, seed: int) -> AsyncIterator[Trials]:
    """With accounts of their own, on a server that may be used by others as well."""
    async with contextlib.AsyncExitStack() as stack:
        people = []
        for _ in range(3):
            who = await stack.enter_async_context(person(server))
            made = await who.client.post("/api/keys", json={"name": "tenants"})
            headers = {"authorization": f"Bearer {made.raise_for_status().json()['key']}"}
            dialect = httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60)
            tab = await stack.enter_async_context(who.tab())
            people.append(Tenant(who, tab, await stack.enter_async_context(dialect)))
        auditor = await stack.enter_async_context(person(server, AccountRole.AUDITOR))
        yield Trials(seed, people, auditor)


async def watch(module: str, trials: int, seed: int) -> list[tuple[bool, Seen]]:
    """The coin and what was seen; the first trial, in which all is new, is left out."""
    coins = random.Random(seed)  # noqa: S311
    server = await asyncio.to_thread(lambda: start_server(None, None, module=module, **SETTINGS))
    with server:
        await asyncio.to_thread(server.wait_until_rested)
        async with trials_at(server, seed) as house:
            await house.one(coin=False)
            tossed = [coins.random() < 0.5 for _ in range(trials)]
            return [(coin, await house.one(coin)) for coin in tossed]


# ---------------------------------------------------------------- what it tells


def channels(watched: Sequence[tuple[bool, Seen]], seed: int) -> tuple[Channel, ...]:
    """Each, held against the coin."""
    names = sorted(set().union(*(seen for _, seen in watched)))
    return tuple(_channel(name, watched, FALSE_ALARMS / len(names), seed) for name in names)


def _channel(name: str, watched: Sequence[tuple[bool, Seen]], alpha: float, seed: int) -> Channel:
    seen = [(coin, one[name]) for coin, one in watched if name in one]
    kinds = {value for _, value in seen}
    if len(kinds) == 1:
        return Channel(name=name, leaks=False, same=str(*kinds))
    if any(isinstance(kind, str) for kind in kinds):
        p = min(_p([(coin, float(value == kind)) for coin, value in seen]) for kind in kinds)
        return Channel(name=name, leaks=p * len(kinds) < alpha, p=p * len(kinds))
    ranked = [(coin, float(value)) for coin, value in seen]
    guessed, other = _sides(ranked)
    p, values = _p(ranked), [*guessed, *other]
    return Channel(
        name=name,
        leaks=p < alpha,
        p=p,
        guessed=median(guessed),
        other=median(other),
        found=found_shift(values, len(guessed), alpha=alpha, power=POWER, seed=seed),
    )


def _p(ranked: Sequence[tuple[bool, float]]) -> float:
    return p_value(*_sides(ranked))


def _sides(ranked: Sequence[tuple[bool, float]]) -> tuple[list[float], list[float]]:
    """Where the guess was right, and where it was not."""
    guessed = [value for coin, value in ranked if coin]
    return guessed, [value for coin, value in ranked if not coin]


MUST_LEAK = (
    "turn: receipt",
    "turn: first words, s",
    "turn: prefill as told, s",
    "instructions: usage",
    "instructions: answer, s",
    "history: usage",
    "history: answer, s",
    "figures: cached_tokens",
)
"""Where there is one scope for all."""


async def run(*, trials: int, seed: int) -> Outcome:
    """As many trials of a server as it is, and of one without scopes."""
    began = time.monotonic()
    scoped = channels(await watch("app", trials, seed), seed)
    unscoped = channels(await watch(UNSCOPED, trials, seed), seed)
    faults = [f"{one.name} tells of another's text" for one in scoped if one.leaks]
    told = {one.name for one in unscoped if one.leaks}
    faults += [f"the leak is not found in {name}" for name in MUST_LEAK if name not in told]
    return Outcome(
        seconds=round(time.monotonic() - began, 1),
        trials=trials,
        alpha=FALSE_ALARMS / len(scoped),
        scoped=scoped,
        unscoped=unscoped,
        faults=faults,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="What tells of another's texts.")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    outcome = asyncio.run(run(trials=asked.trials, seed=asked.seed))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(outcome)).decode() + "\n")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
