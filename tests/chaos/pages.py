"""The pages of a load that speak and read: those who always want more, and those who look.

Everything that is heard goes into one tally: how long it took, and whatever is no documented answer.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from app.events import ResponseEnded, ResponseView, TextDelta
from app.frames import (
    CancelAccepted,
    Draft,
    ErrorFrame,
    Event,
    Presence,
    PresenceState,
    ResponseCancel,
    Snapshot,
    Subscribe,
    Subscribed,
    TurnAccepted,
    TurnCreate,
    TurnEdit,
)
from app.ids import ConversationId, MessageId, ResponseId
from app.routes.problems import CLOSE_LATER, CLOSE_OLD, CLOSE_RESTART
from benchmarks.texts import text
from tests.chaos.counted import ANSWER_TOKENS
from tests.chaos.gauges import Tally
from tests.kit.tab import Person, Tab

AGAIN = ("rate_limit_exceeded", "unavailable")
AGAIN_S = 1.0
CLOSES = (CLOSE_OLD, CLOSE_LATER, CLOSE_RESTART)
"""How the server may part with a page that did nothing wrong, or too much."""
GONE = (OSError, EOFError, ConnectionClosed, InvalidHandshake, httpx.TransportError)
NEW_WORDS = 12
FILLED = 8
"""Sessions that one page fills at a time."""
STOPS = (1, 4, 16, 40)
"""Pieces that are heard of an answer before it is stopped."""
STOPPED = 0.5
"""Share of the answers that are."""
ASKED = 0.2
"""Share of the stops with which the step is asked for."""
LOOK_S = (30.0, 300.0)
Steps = Callable[[], Awaitable[int]]


@dataclass
class Session:
    """A conversation that somebody shows. Its last question is asked anew and anew."""

    conversation_id: ConversationId
    question: MessageId | None = None
    leaf: MessageId | None = None
    shared: int | None = None
    """Tokens that its first turn found: everybody's, such as the persona's."""
    tokens: int = 0
    """The others."""


@dataclass
class Asked:
    """A turn from when it was sent; `stop_after` counts pieces."""

    session: Session
    sent_s: float
    stop_after: int
    first_s: float | None = None
    last_s: float = 0.0
    pieces: int = 0


class Speaker:
    """A page that says something in each of its sessions, `at_once` of them at a time.

    `rude`: does not wait where it is asked to.
    """

    def __init__(
        self,
        person: Person,
        sessions: list[Session],
        tally: Tally,
        draw: random.Random,
        *,
        at_once: int = 1,
        rude: bool = False,
    ) -> None:
        self._person = person
        self._sessions = sessions
        self._tally = tally
        self._draw = draw
        self._at_once = at_once
        self._rude = rude
        self._idle: deque[Session] = deque()
        self._sent: dict[str, Asked] = {}
        self._heard: dict[ResponseId, Asked] = {}
        self._early: dict[ResponseId, list[Event]] = {}
        self._by_id = {one.conversation_id: one for one in sessions}
        self._cancels: dict[str, tuple[float, asyncio.Task[int] | None]] = {}
        self._said = 0

    # ------------------------------------------------------------ lives

    async def fill(self, words: int) -> None:
        """Say something long in each session, and hear the beginning of the answer."""
        async with opened(self._person, self._tally) as tab:
            await self._watch(tab)
            while empty := [one for one in self._sessions if not one.tokens]:
                begun = len(self._sent) + len(self._heard)
                for session in [one for one in empty if one in self._idle][: FILLED - begun]:
                    self._idle.remove(session)
                    await self._ask(tab, session, words=words, stop_after=1)
                await self._hear(tab, await tab.receive(), None)

    async def speak(self, ending: asyncio.Event, steps: Steps) -> None:
        """Always want more, until `ending`; then hear the last answers to their end."""
        while not ending.is_set():
            with contextlib.suppress(*GONE):
                async with opened(self._person, self._tally) as tab:
                    await self._watch(tab)
                    while not ending.is_set():
                        await self._begin(tab)
                        await self._hear(tab, await tab.receive(), steps)
                    while self._heard or self._sent:
                        await self._hear(tab, await tab.receive(), steps)

    async def look(self, ending: asyncio.Event, steps: Steps) -> None:
        """Show the sessions, type now and then, and say something after a while."""
        while not ending.is_set():
            with contextlib.suppress(*GONE):
                async with opened(self._person, self._tally) as tab:
                    await self._watch(tab)
                    while not ending.is_set():
                        await pause(self._draw.uniform(*LOOK_S), ending)
                        if ending.is_set():
                            break
                        await self._type(tab)
                        await self._begin(tab)
                        while self._sent or self._heard:
                            await self._hear(tab, await tab.receive(), steps)

    # ------------------------------------------------------------ saying

    async def _watch(self, tab: Tab) -> None:
        for of_old in (self._sent, self._heard, self._early, self._cancels):
            of_old.clear()
        for session in self._sessions:
            subscribed = await tab.subscribe(session.conversation_id)
            if session.leaf is not None:
                session.leaf = subscribed.leaf_id
            presence = Presence(conversation_id=session.conversation_id, state=PresenceState.OPEN)
            await tab.send(presence)
        self._idle = deque(self._draw.sample(self._sessions, len(self._sessions)))

    async def _begin(self, tab: Tab) -> None:
        while self._idle and len(self._sent) + len(self._heard) < self._at_once:
            pieces = ANSWER_TOKENS
            if self._draw.random() < STOPPED:
                pieces = self._draw.choice(STOPS)
            await self._ask(tab, self._idle.popleft(), words=NEW_WORDS, stop_after=pieces)

    async def _type(self, tab: Tab) -> None:
        session = self._sessions[0]
        for words in ("Tell me", "Tell me of the sea, and of"):
            await tab.send(
                Draft(conversation_id=session.conversation_id, parent_id=session.leaf, text=words)
            )

    async def _ask(self, tab: Tab, session: Session, *, words: int, stop_after: int) -> None:
        self._said += 1
        name = tab.name()
        seed = f"{self._person.email} {session.conversation_id} {self._said} {self._draw.random()}"
        said = f"Tell me a long story of {text(seed, words)}."
        frame: TurnCreate | TurnEdit
        if session.question is None or session.leaf is None:
            frame = TurnCreate(
                request_id=name,
                conversation_id=session.conversation_id,
                client_message_id=seed[-48:],
                parent_id=session.leaf,
                text=said,
            )
        else:
            frame = TurnEdit(
                request_id=name,
                conversation_id=session.conversation_id,
                client_message_id=seed[-48:],
                message_id=session.question,
                leaf_id=session.leaf,
                text=said,
            )
        self._sent[name] = Asked(session, time.monotonic(), stop_after)
        await tab.send(frame)

    # ------------------------------------------------------------ hearing

    async def _hear(self, tab: Tab, frame: object, steps: Steps | None) -> None:
        match frame:
            case TurnAccepted():
                self._accept(frame)
                for early in self._early.pop(frame.response.id, ()):
                    await self._hear_of_answer(tab, early, steps)
            case Event() if frame.response_id not in self._heard:
                # The first events may overtake the acknowledgement.
                self._early.setdefault(frame.response_id, []).append(frame)
            case Event() | Snapshot():
                await self._hear_of_answer(tab, frame, steps)
            case CancelAccepted():
                await self._stopped(frame)
            case Subscribed():
                self._by_id[frame.conversation_id].leaf = frame.leaf_id
            case ErrorFrame():
                await self._refused(tab, frame)

    async def _hear_of_answer(self, tab: Tab, frame: Event | Snapshot, steps: Steps | None) -> None:
        match frame:
            case Event(event=TextDelta()):
                await self._piece(tab, frame.response_id, steps)
            case Event(event=ResponseEnded(response=response)):
                self._end(response)
            case Snapshot(response=response):
                self._tally.counts["snapshots"] += 1
                if response.status.ended and response.id in self._heard:
                    self._end(response)

    def _accept(self, frame: TurnAccepted) -> None:
        asked = self._sent.pop(frame.request_id)
        self._tally.took("accepted", asked.sent_s)
        self._tally.counts["accepted"] += 1
        if asked.session.leaf is not None and frame.message is not None:
            asked.session.question = frame.message.id
        asked.session.leaf = frame.response.message_id
        self._heard[frame.response.id] = asked

    async def _refused(self, tab: Tab, frame: ErrorFrame) -> None:
        self._tally.told(frame.error.code, f"an error frame: {frame.error}")
        asked = self._sent.pop(frame.request_id or "", None)
        if asked is None:
            return
        if not self._rude and frame.error.code in AGAIN:
            await asyncio.sleep(frame.error.retry_after_s or 0)
        conversation_id = asked.session.conversation_id
        await tab.send(Subscribe(request_id=tab.name(), conversation_id=conversation_id))
        self._idle.append(asked.session)

    async def _piece(self, tab: Tab, response_id: ResponseId, steps: Steps | None) -> None:
        now, asked = time.monotonic(), self._heard[response_id]
        asked.pieces += 1
        if asked.first_s is None:
            asked.first_s = now
            self._tally.took("first token", asked.sent_s)
        else:
            self._tally.took("gap", asked.last_s)
        asked.last_s = now
        self._tally.served[self._person.email].append((now, 1))
        self._tally.output.append((now, 1))
        if asked.pieces == asked.stop_after:
            name = tab.name()
            await tab.send(ResponseCancel(request_id=name, response_id=response_id))
            asks = steps if self._draw.random() < ASKED else None
            asking = None if asks is None else asyncio.ensure_future(asks())
            self._cancels[name] = time.monotonic(), asking

    async def _stopped(self, frame: CancelAccepted) -> None:
        began, asking = self._cancels.pop(frame.request_id)
        self._tally.took("stop", began)
        if asking is not None:
            done = await asking
            if frame.step is not None:
                self._tally.stops.append(frame.step - done)

    def _end(self, response: ResponseView) -> None:
        asked = self._heard.pop(response.id)
        self._tally.counts[response.status.value] += 1
        if response.error is not None:
            self._tally.told(response.error.code, f"an answer failed: {response.error}")
        else:
            self._tally.took("turn", asked.sent_s)
        if receipt := response.receipt:
            session = asked.session
            session.shared = receipt.cached_tokens if session.shared is None else session.shared
            session.tokens = receipt.prompt_tokens + receipt.output_tokens - session.shared
            served = self._tally.served[self._person.email]
            # What is computed is so before the first piece; a piece may be more than one token.
            served.append((asked.first_s or time.monotonic(), receipt.computed_tokens))
            unheard = max(0, receipt.output_tokens - asked.pieces)
            served.append((time.monotonic(), unheard))
            self._tally.output.append((time.monotonic(), unheard))
        self._idle.append(asked.session)


# ---------------------------------------------------------------- sockets


@contextlib.asynccontextmanager
async def opened(person: Person, tally: Tally) -> AsyncIterator[Tab]:
    """A page that reads; why it was not let in, or was closed, is to be documented."""
    began = time.monotonic()
    try:
        async with person.tab() as tab:
            tally.took("opened", began)
            yield tab
    except InvalidStatus as refusal:
        tally.refused(refusal.response.status_code, refusal.response.body)
        await asyncio.sleep(AGAIN_S)
        raise
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd is not None else None
        tally.counts[f"closed with {code}"] += 1
        if code not in CLOSES:
            tally.faults[f"a page that reads was closed with {code}"] += 1
        raise


async def pause(seconds: float, ending: asyncio.Event) -> None:
    """So long, or until the run ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ending.wait()
