"""Titles: once a conversation has an answer, the model is asked in the background what it is about.

    first answer ──> asked, behind the conversation's own ids ──> cleaned ──> kept, and told
                       └── the next turn, a deletion or a fault ends it, and nothing has happened

Until then, and wherever that comes to nothing, the title is the first message's first words. A title
that a person gave is never replaced, not even one given while the model thinks: the row decides. A
conversation of the dialect has no title to see, and what is not stored has none at all.
"""

import asyncio
import logging
import re
from functools import partial
from typing import NamedTuple

from app.chat.asides import aside_job, heard
from app.chat.conversations import Conversations
from app.chat.entry import TITLE_CHARACTERS, TurnRequest
from app.chat.errands import Errands
from app.chat.intake import Intake
from app.chat.ledger import StoredResponse
from app.db.types import Origin
from app.errors import AppError
from app.events import ResponseStatus, ResponseView
from app.ids import ConversationId, MessageId, UserId
from app.people.usage import Usage
from engine.api import Engine, FinishReason, Limits, Message, Role
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

QUESTION = (
    "Give this conversation a short title of two to six words, in its own language."
    " Answer with the title alone."
)
LIMITS = Limits(max_output_tokens=24, stop=("\n",))
MOST_RUNNING = 2
"""Titles in the engine at once; its queue is for turns."""

_LABEL = re.compile(r"^\W*title\s*[:\-]\s*", re.IGNORECASE)
_PROMISE = re.compile(r"\b(title|conversation|summary)\b.*:$", re.IGNORECASE)
"""It says that a title will follow."""
_AROUND = (
    " \t:*_#`\"'" + "\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e\u2039\u203a\u300c\u300d\u300e\u300f"
)
"""Marks, and the quotes of several languages."""
_JOINERS = "\u200c\u200d"
"""Cannot be printed, and yet some scripts and pictures need them inside a word."""


def cleaned(answer: str) -> str:
    """One line without quotes and marks around it; empty where it is no title."""
    line = " ".join(next(iter(answer.strip().splitlines()), "").split())
    if line.startswith("<") or _PROMISE.search(line):
        return ""
    line = "".join(one for one in line if one.isprintable() or one in _JOINERS)
    line = _LABEL.sub("", line).strip(_AROUND)
    if not line.endswith(("..", "…")):
        line = line.removesuffix(".").strip(_AROUND)
    has_words = any(one.isalnum() for one in line)
    return line if has_words and len(line) <= TITLE_CHARACTERS else ""


class _Key(NamedTuple):
    user_id: UserId
    conversation_id: ConversationId


class Titles:
    """One per server. With `wanted` false it asks for none."""

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        conversations: Conversations,
        *,
        usage: Usage,
        wanted: bool,
    ) -> None:
        self._engine = engine
        self._intake = intake
        self._conversations = conversations
        self._usage = usage
        self._wanted = wanted
        self._asking: dict[_Key, asyncio.Task[None]] = {}
        self._seats = asyncio.Semaphore(MOST_RUNNING)
        self.errands = Errands(self._stop)

    @property
    def asking(self) -> int:
        """For how many conversations the model is being asked."""
        return len(self._asking)

    def offer(self, response: StoredResponse, view: ResponseView) -> None:
        """An answer has ended as `view` tells: its conversation may want a title."""
        conversation_id = view.conversation_id
        if not self.errands.are_taken or not self._wanted or conversation_id is None:
            return
        is_answer = response.reply_id is not None and response.origin is Origin.CHAT
        if is_answer and view.status in (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE):
            key = _Key(response.user_id, conversation_id)
            self.drop(*key)
            self._asking[key] = self.errands.begin(self._ask(key, view.message_id))

    def drop(self, user_id: UserId, conversation_id: ConversationId) -> asyncio.Task[None] | None:
        """Its next turn comes, or it is deleted: whoever is asked for its title need not answer."""
        task = self._asking.pop(_Key(user_id, conversation_id), None)
        if task is not None:
            task.cancel()
        return task

    async def forget(self, user_id: UserId, conversation_id: ConversationId) -> None:
        """The same; when this returns nothing more is computed for it."""
        task = self.drop(user_id, conversation_id)
        if task is not None:
            await asyncio.wait((task,))

    async def forget_user(self, user_id: UserId) -> None:
        """When this returns nothing more is computed for the titles of this user."""
        for key in [key for key in self._asking if key.user_id == user_id]:
            await self.forget(*key)

    def users(self) -> set[UserId]:
        return {key.user_id for key in self._asking}

    def _stop(self) -> None:
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, key: _Key, message_id: MessageId) -> None:
        try:
            if await self._conversations.wants_title(*key):
                await self._give(key, message_id)
        except (AppError, EngineError):
            pass  # nobody asked for one
        except Exception as error:  # noqa: BLE001  its words might quote the text
            LOG.error("a title was given up: %s", type(error).__name__)
        finally:
            if self._asking.get(key) is asyncio.current_task():
                del self._asking[key]

    async def _give(self, key: _Key, message_id: MessageId) -> None:
        request = TurnRequest(
            conversation_id=key.conversation_id,
            message_id=message_id,
            messages=(Message(role=Role.USER, text=QUESTION),),
        )
        card, wanted, rendered = await self._intake.wanted(key.user_id, request)
        prompt = await self._intake.prompts.make(card, wanted, rendered)
        async with self._seats:
            spent = partial(self._usage.besides, key.user_id)
            answer = await heard(self._engine, aside_job(*key, prompt, LIMITS), spent)
        if answer is None or answer.end.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return  # there was no room for it; the next answer may find some
        is_whole = answer.end.reason is FinishReason.STOP
        await self._conversations.settle_title(*key, cleaned(answer.text) if is_whole else "")
