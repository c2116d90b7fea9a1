"""Where turns are kept: the structs that a turn is made of, and the `Ledger` that keeps them.

There are two ledgers with one road: `stored` (the database) and `memory` (`store: false`). Every
call names the owner, and what is another's does not exist (law 19). Nothing here renders text,
runs a job or talks to a socket.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from app.chat.asked import Asked, Compared
from app.db.types import Origin, VersionRef
from app.events import ConversationView, MessageView, ResponseView
from app.ids import ConversationId, ItemId, MessageId, ResponseId, UserId
from app.people.usage import Ask, Cost
from engine.api import Role, Scope, Seam


class Act(enum.StrEnum):
    """What a turn does at the message that it names; none of them changes that message."""

    SAY = "say"
    """Goes on below it, or begins where none is named."""
    APPEND = "append"
    """Goes on below the end of the branch that is shown, in a labelled conversation."""
    EDIT = "edit"
    """Says something else in its place: a sibling of a person's message, and an answer to that."""
    REGENERATE = "regenerate"
    """Answers it once more, or what it answers."""
    CONTINUE = "continue"
    """Takes up an answer that was cut short: a sibling that begins with all of it."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a stored conversation a turn is to be, and its sender's name for it."""

    conversation_id: ConversationId
    act: Act
    message_id: MessageId | None
    client_message_id: str | None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A message with the exact ids that it adds to a prompt, its glue included (law 3)."""

    id: MessageId
    parent_id: MessageId | None
    role: Role
    text: str
    token_ids: tuple[int, ...]
    seam: Seam | None
    """How the ids end. After an opened reply it is `CUT`: what follows must close the reply."""
    model_fingerprint: str | None
    template_fingerprint: str | None
    created_at: datetime
    head_token_ids: tuple[int, ...] | None = None
    """The head that this node's turn was sent under; None: that of the nearest node above."""
    client_message_id: str | None = None

    @property
    def is_mark(self) -> bool:
        """True where nothing was said: it only keeps the place of a warm-up without messages."""
        return self.role is Role.SYSTEM and not self.token_ids


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the path: persona, instructions, or the template's opening alone.

    `[0, opening_end)` is the template's own; a caller's text comes after it.
    """

    key: str
    """Names the text that it was rendered from; equal keys, equal text."""
    token_ids: tuple[int, ...]
    opening_end: int


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response with everything that is kept of it; `view.message_id` is what a turn continues.

    For a warm-up that is the last message of its input, or a mark: it writes no message of its own.
    """

    view: ResponseView
    user_id: UserId
    text: str
    origin: Origin
    previous_response_id: ResponseId | None
    instructions: str | None
    asked: Asked
    store: bool
    epoch: str

    @property
    def reply_id(self) -> MessageId | None:
        """The message that it writes."""
        return self.view.message_id if self.asked.generate else None

    @property
    def has_item(self) -> bool:
        """Whether its log has an output item, as far as what is kept of an ended response tells."""
        began = self.view.receipt is not None or bool(self.text)
        return began and self.reply_id is not None


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """What a new turn continues. An empty path is a beginning."""

    session_id: ConversationId
    """The conversation's presence in the engine, stored or not."""
    conversation: ConversationView | None
    """None where it is yet to be made, or is not stored."""
    reads: tuple[VersionRef, ...] = ()
    """The persona that stands before the path, and its documents, each at the version it stays on."""
    readable: Mapping[ItemId, Scope] | None = None
    """Those of them that the user may read, as `readers.scopes` tells; None: it was not asked."""
    path: tuple[Node, ...] = ()
    head: Head | None = None
    """Under which the last turn of the path was sent, where that is known."""
    last: StoredResponse | None = None
    """The response that ends the path, or whose turn brought the message that does."""
    resumed: Node | None = None
    """The answer to the path's end that is taken up again."""
    forked: bool = False
    """True when the path does not end at the conversation's leaf."""

    @property
    def parent_id(self) -> MessageId | None:
        return self.path[-1].id if self.path else None

    @property
    def said(self) -> tuple[Node, ...]:
        """The path without marks: what a template is told of it."""
        return tuple(node for node in self.path if not node.is_mark)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one accepted turn stores, in one transaction."""

    session_id: ConversationId
    begins: Origin | None
    """Set where the conversation is new: whose list it is to stand in."""
    path: tuple[Node, ...]
    head: Head
    reads: tuple[VersionRef, ...]
    path_changed: bool
    """True when the path was rendered anew and its ids are to be stored again."""
    inputs: tuple[Node, ...]
    """New messages, or the mark of a warm-up; empty where the path's own last message is answered."""
    reply: Node | None
    """The assistant's message; None for a warm-up. Its text is still empty, and its ids are the glue
    that opens it where no input carries that."""
    response: StoredResponse
    title: str
    """For a conversation that has none yet."""
    path_digest: bytes
    """Stands for all that is said before the reply (`recall`)."""
    leaf_checked: bool
    """True: refuse unless the conversation's leaf is still `seen_leaf_id`."""
    seen_leaf_id: MessageId | None

    @property
    def leaf_id(self) -> MessageId:
        return self.response.view.message_id

    @property
    def parent_id(self) -> MessageId | None:
        return self.path[-1].id if self.path else None

    @property
    def client_message_id(self) -> str | None:
        first = self.inputs[-1] if self.inputs else self.reply
        return None if first is None else first.client_message_id


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """`fresh` is false when this `client_message_id` had been accepted before."""

    messages: tuple[MessageView, ...]
    response: ResponseView
    conversation: ConversationView | None
    """None for a turn that is not stored."""
    fresh: bool
    compared: Compared | None = None

    @property
    def message(self) -> MessageView | None:
        """The new message that is answered; None for a turn that brought none or is not stored."""
        return self.messages[-1] if self.messages else None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a reply that is being written."""

    response_id: ResponseId
    message_id: MessageId
    text: str
    token_ids: tuple[int, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a response ended. `reply_id` is None for a warm-up, which writes no message."""

    input_ids: tuple[MessageId, ...]
    """The messages that its request brought."""
    view: ResponseView
    user_id: UserId
    reply_id: MessageId | None
    text: str
    token_ids: tuple[int, ...]
    seam: Seam
    path_digest: bytes | None
    """Stands for all that is said, the reply included; None where it is not to be found by that."""

    @property
    def message_ids(self) -> tuple[MessageId, ...]:
        """Everything that the turn said."""
        return self.input_ids if self.reply_id is None else (*self.input_ids, self.reply_id)


def cost_of(outcome: Outcome) -> Cost:
    """What it is counted as; an answer that the engine lost costs nothing."""
    used = outcome.view.usage
    if used is None:
        return Cost()
    return Cost(
        computed_tokens=used.input_tokens - used.cached_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
    )


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A response that was deleted."""

    session_id: ConversationId | None
    """Set where nothing is left of the session that it was in."""


class Ledger(Protocol):
    """Keeps turns. Every call is one short transaction, or none."""

    async def after_response(self, user_id: UserId, response_id: ResponseId) -> Branch | None:
        """The branch that ends with this response; None when there is no such response."""
        ...

    async def accept(self, entry: Entry, ask: Ask, written: Callable[[], None]) -> Acceptance:
        """Store a turn whole, or find what the same `client_message_id` stored before.

        `written` is called where nothing but the disk is left to wait for; it may fail even then.
        Raises `NotFound`, `ParentMoved`, `Conflict` ("turn_in_progress") and `QuotaExceeded`; then
        nothing is kept.
        """
        ...

    async def finish(self, outcome: Outcome) -> None:
        """The last word on a response: state, text, ids. Nothing happens if it was deleted."""
        ...

    async def response(self, user_id: UserId, response_id: ResponseId) -> StoredResponse | None: ...

    async def inputs(self, response: StoredResponse) -> tuple[MessageView, ...]:
        """The messages that the response's request brought."""
        ...

    async def recall(self, user_id: UserId, digests: Sequence[bytes]) -> Branch | None:
        """The branch that ends with the first of these that an ended reply has; see `recall`."""
        ...

    async def delete_response(self, user_id: UserId, response_id: ResponseId) -> Removed | None:
        """Forget a response; its messages stay a part of their conversation.

        None when there is no such response.
        """
        ...
