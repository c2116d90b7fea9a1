"""People who follow a script while the server comes and goes, and what each of them was told.

Whatever a person does is drawn from a seed. What was not acknowledged when the connection broke is
sent again as it was, an answer that was on its way is heard on from where it was heard last; so at
the end everything that was said once and once only must be there, and nothing else.
"""

import asyncio
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from app.events import ResponseEnded, ResponseStatus, TextDelta
from app.frames import (
    Cursor,
    Draft,
    ErrorFrame,
    Event,
    OutwardFrame,
    Presence,
    PresenceState,
    ResponseCancel,
    Snapshot,
    Subscribe,
    Subscribed,
    TurnAccepted,
    TurnContinue,
    TurnCreate,
    TurnEdit,
    TurnRegenerate,
)
from app.ids import ConversationId, MessageId, ResponseId
from tests.kit.tab import Person, Tab

GONE = (OSError, EOFError, ConnectionClosed, InvalidHandshake, httpx.TransportError)
"""What a client sees of a server that is not there, or was and is no more."""
AGAIN = ("overloaded", "unavailable")
"""Refusals that ask to be tried again."""
AGAIN_S = 0.05
CONVERSATIONS, TURNS = 3, 8
STOPS = (1, 2, 5, 20, 60)
"""Pieces that are heard of an answer before it is stopped; most end by themselves before the last."""
TOPICS = ("the sea", "a lighthouse", "bees", "a train", "the moon", "an old clock", "rain", "bread")

Asked = TurnCreate | TurnEdit | TurnRegenerate | TurnContinue


@dataclass
class Act:
    """Something that wants an answer; `accepted` is what the server said of it."""

    frame: Asked
    text: str | None
    accepted: TurnAccepted | None = None


@dataclass
class Hearing:
    """An answer as far as it was heard."""

    conversation_id: ConversationId
    response_id: ResponseId
    message_id: MessageId
    epoch: str
    stop_after: int
    last: int = -1
    text: str = ""
    pieces: int = 0


@dataclass
class Told:
    """All that somebody was told, which must hold for ever after."""

    acts: list[Act] = field(default_factory=list)
    ends: dict[ResponseId, tuple[ResponseStatus, str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Talker:
    """One person with one tab; `live` goes on until it is asked to end, whatever the server does.

    With a chance of `cuts` the connection is broken by this end behind a frame.
    """

    def __init__(self, person: Person, seed: str, *, cuts: float = 0.0) -> None:
        self.person = person
        self.told = Told()
        self.conversations: list[ConversationId] = []
        self._draw = random.Random(seed)  # noqa: S311  it is repeated, not kept secret
        self._name = seed
        self._cuts = cuts
        self._numbers = 0
        self._waiting: Act | None = None
        self._hearing: Hearing | None = None
        self._frames: deque[OutwardFrame] = deque()
        self._turns: Counter[ConversationId] = Counter()
        self._mine: dict[ConversationId, MessageId] = {}
        self._begun: set[MessageId] = set()
        """Answers that were cut short behind some text, and may be gone on with."""

    async def live(self, ending: asyncio.Event) -> None:
        """Act until `ending` is set and what was begun is over."""
        while not ending.is_set() or self._waiting or self._hearing:
            try:
                async with self.person.tab() as tab:
                    self._frames.clear()
                    await self._go_on(tab)
                    while not ending.is_set():
                        await self._act(tab)
            except GONE:
                self.told.counts["breaks"] += 1
                await asyncio.sleep(AGAIN_S)

    async def _go_on(self, tab: Tab) -> None:
        """With what was on its way when the connection broke."""
        if self._hearing is not None:
            await self._hear(tab, self._hearing)
        if self._waiting is not None:
            self.told.counts["repeated"] += 1
            await self._subscribe(tab, self._waiting.frame.conversation_id)
            await self._ask(tab, self._waiting)

    async def _act(self, tab: Tab) -> None:
        conversation_id = await self._conversation()
        leaf = await self._subscribe(tab, conversation_id)
        await self._fidget(tab, conversation_id, leaf)
        act = self._choose(conversation_id, leaf)
        self.told.acts.append(act)
        self._waiting = act
        await self._ask(tab, act)

    async def _conversation(self) -> ConversationId:
        open_ones = [one for one in self.conversations if self._turns[one] < TURNS]
        if len(open_ones) < CONVERSATIONS and (not open_ones or self._draw.random() < 0.3):
            made = await self.person.conversation()
            self.conversations.append(made)
            return made
        return self._draw.choice(open_ones)

    def _choose(self, conversation_id: ConversationId, leaf: MessageId | None) -> Act:
        self._turns[conversation_id] += 1
        self._numbers += 1
        common: dict[str, Any] = {
            "request_id": f"a{self._numbers}",
            "conversation_id": conversation_id,
            "client_message_id": f"{self._name}-{self._numbers}",
        }
        text = f"{self._name}, {self._numbers}: tell me of {self._draw.choice(TOPICS)}."
        mine, chance = self._mine.get(conversation_id), self._draw.random()
        if leaf is None or mine is None or chance < 0.6:
            return Act(TurnCreate(**common, parent_id=leaf, text=text), text)
        if chance < 0.75:
            return Act(TurnEdit(**common, message_id=mine, leaf_id=leaf, text=text), text)
        if chance < 0.9 and leaf in self._begun:
            return Act(TurnContinue(**common, message_id=leaf, leaf_id=leaf), None)
        return Act(TurnRegenerate(**common, message_id=leaf, leaf_id=leaf), None)

    async def _fidget(
        self, tab: Tab, conversation_id: ConversationId, leaf: MessageId | None
    ) -> None:
        """What is never answered: drafts and how the conversation is shown."""
        if self._draw.random() < 0.3:
            for text in ("Tell me of", "Tell me of something else. And"):
                await tab.send(Draft(conversation_id=conversation_id, parent_id=leaf, text=text))
        if self._draw.random() < 0.3:
            state = self._draw.choice(list(PresenceState))
            await tab.send(Presence(conversation_id=conversation_id, state=state))

    # ------------------------------------------------------------ asking and hearing

    async def _subscribe(
        self, tab: Tab, conversation_id: ConversationId, *cursors: Cursor
    ) -> MessageId | None:
        request_id = tab.name()
        await tab.send(
            Subscribe(request_id=request_id, conversation_id=conversation_id, cursors=cursors)
        )
        early: list[OutwardFrame] = []
        while True:
            frame = await self._next(tab)
            if isinstance(frame, Subscribed) and frame.request_id == request_id:
                self._frames.extendleft(reversed(early))
                return frame.leaf_id
            if isinstance(frame, ErrorFrame) and frame.request_id == request_id:
                self.told.faults.append(f"a subscription was refused: {frame.error}")
                raise ConnectionClosed(None, None)
            early.append(frame)

    async def _ask(self, tab: Tab, act: Act) -> None:
        """Send it until it is accepted, then hear the answer; refusals that say so are tried again."""
        await tab.send(act.frame)
        early: list[OutwardFrame] = []
        while True:
            frame = await self._next(tab)
            if isinstance(frame, TurnAccepted) and frame.request_id == act.frame.request_id:
                break
            if isinstance(frame, ErrorFrame) and frame.request_id == act.frame.request_id:
                if frame.error.code not in AGAIN:
                    self.told.faults.append(f"{type(act.frame).__name__}: {frame.error}")
                    self._waiting = None
                    return
                self.told.counts["tried again"] += 1
                await asyncio.sleep(AGAIN_S)
                await tab.send(act.frame)
            else:
                early.append(frame)
        self._frames.extendleft(reversed(early))
        act.accepted, self._waiting = frame, None
        if frame.message is not None:
            self._mine[act.frame.conversation_id] = frame.message.id
        self._hearing = Hearing(
            conversation_id=act.frame.conversation_id,
            response_id=frame.response.id,
            message_id=frame.response.message_id,
            epoch=tab.epoch,
            stop_after=self._draw.choice(STOPS),
        )
        await self._listen(tab, self._hearing)

    async def _hear(self, tab: Tab, hearing: Hearing) -> None:
        """From where it was heard last, in this life of the server or a later one."""
        cursor = Cursor(response_id=hearing.response_id, after=hearing.last, epoch=hearing.epoch)
        await self._subscribe(tab, hearing.conversation_id, cursor)
        await self._listen(tab, hearing)

    async def _listen(self, tab: Tab, hearing: Hearing) -> None:
        while True:
            frame = await self._next(tab)
            if isinstance(frame, Snapshot) and frame.response.id == hearing.response_id:
                hearing.text, hearing.last = frame.text, frame.sequence_number
                hearing.epoch = frame.epoch
                if frame.response.status.ended:
                    self._end(hearing, frame.response.status, frame.text)
                    return
            elif isinstance(frame, Event) and frame.response_id == hearing.response_id:
                event = frame.event
                if event.sequence_number != hearing.last + 1:
                    self.told.faults.append(
                        f"event {event.sequence_number} came behind {hearing.last}"
                    )
                hearing.last = event.sequence_number
                if isinstance(event, TextDelta):
                    hearing.text += event.delta
                    hearing.pieces += 1
                    if hearing.pieces == hearing.stop_after:
                        await tab.send(
                            ResponseCancel(request_id=tab.name(), response_id=hearing.response_id)
                        )
                elif isinstance(event, ResponseEnded):
                    self._end(hearing, event.response.status, event.text)
                    return

    def _end(self, hearing: Hearing, status: ResponseStatus, text: str) -> None:
        if text != hearing.text:
            self.told.faults.append(f"the end says {text!r}, what was heard {hearing.text!r}")
        self.told.ends[hearing.response_id] = status, text
        self.told.counts[status.value] += 1
        if text and status in (ResponseStatus.CANCELLED, ResponseStatus.INCOMPLETE):
            self._begun.add(hearing.message_id)
        self._hearing = None

    async def _next(self, tab: Tab) -> OutwardFrame:
        if self._frames:
            return self._frames.popleft()
        frame = await tab.next_frame()
        if self._draw.random() < self._cuts:
            kind = frame.event if isinstance(frame, Event) else frame
            self.told.counts[f"cut at {type(kind).__name__}"] += 1
            tab.socket.transport.abort()
            raise ConnectionAbortedError
        return frame


# ---------------------------------------------------------------- what must hold at the end


async def look(talker: Talker) -> list[str]:
    """Whatever is not as this person was told; everything that was begun is over."""
    stored: dict[ConversationId, list[dict[str, Any]]] = {}
    for conversation_id in talker.conversations:
        answer = await talker.person.client.get(f"/api/conversations/{conversation_id}")
        stored[conversation_id] = answer.raise_for_status().json()["messages"]
    return [*talker.told.faults, *_lost(talker, stored), *_invented(talker, stored)]


def _lost(talker: Talker, stored: dict[ConversationId, list[dict[str, Any]]]) -> list[str]:
    """Acknowledged and not there, or there in another way, or twice."""
    found: list[str] = []
    for act in talker.told.acts:
        if act.accepted is None:
            continue
        messages = {one["id"]: one for one in stored[act.frame.conversation_id]}
        said, answer = act.accepted.message, messages.get(act.accepted.response.message_id)
        if said is not None and messages.get(said.id, {}).get("text") != act.text:
            found.append(f"{act.text!r} was acknowledged and is not there")
        if answer is None:
            found.append(f"the answer {act.accepted.response.id} was acknowledged and is not there")
            continue
        status = answer["response"]["status"]
        if status in ("queued", "in_progress"):
            found.append(f"{answer['id']} is {status} for ever")
        ended = talker.told.ends.get(act.accepted.response.id)
        if ended is not None and (status, answer["text"]) != (ended[0].value, ended[1]):
            found.append(f"{answer['id']} ended as {ended} and is {status}, {answer['text']!r}")
    return found


def _invented(talker: Talker, stored: dict[ConversationId, list[dict[str, Any]]]) -> list[str]:
    said = Counter(
        message["text"]
        for messages in stored.values()
        for message in messages
        if message["role"] == "user"
    )
    asked = {act.text for act in talker.told.acts if act.text is not None}
    doubled = [f"{text!r} is there {count} times" for text, count in said.items() if count > 1]
    return doubled + [f"{text!r} was never said" for text in said if text not in asked]


def branch(messages: list[dict[str, Any]], leaf_id: str | None) -> list[dict[str, str]]:
    """The messages from the first one to the leaf, as the dialect has them."""
    known = {one["id"]: one for one in messages}
    path: list[dict[str, str]] = []
    at = known.get(leaf_id or "")
    while at is not None:
        path.insert(0, {"role": at["role"], "content": at["text"]})
        at = known.get(at["parent_id"] or "")
    return path
