"""The ledger of what must not be stored (`store: false`): memory only, bounded, oldest out first.

A turn holds its whole path by reference, so a branch costs its new nodes alone and does not depend
on what was let go. What is live is never let go. A turn that was left has no name any more, but its
words are still recalled for who sends them again (`recall`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from app.chat import rows
from app.chat.ledger import (
    Acceptance,
    Branch,
    Entry,
    Head,
    Node,
    Outcome,
    Removed,
    StoredResponse,
    cost_of,
)
from app.db.types import VersionRef
from app.events import MessageView
from app.ids import ConversationId, ResponseId, UserId
from app.people.usage import Ask, Usage

KEPT_RESPONSES = 4_096
"""Ended responses that are remembered, of all users together."""
KEPT_RESPONSES_PER_USER = 256
KEPT_TOKENS = 4_000_000
"""In the paths of these, a shared one counted for each: at most some 150 MB."""
KEPT_TOKENS_PER_USER = 1_000_000


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A response and everything on the way to it, its own message last."""

    session_id: ConversationId
    path: tuple[Node, ...]
    head: Head
    reads: tuple[VersionRef, ...]
    response: StoredResponse
    path_digest: bytes | None = None
    named: bool = True
    """False: it cannot be asked for by its id."""

    @property
    def tokens(self) -> int:
        return len(self.head.token_ids) + sum(len(node.token_ids) for node in self.path)

    @property
    def branch(self) -> Branch:
        return Branch(
            session_id=self.session_id,
            conversation=None,
            reads=self.reads,
            path=self.path,
            head=self.head,
            last=self.response,
        )


class MemoryLedger:
    """Keeps turns until others push them out; see `Ledger`."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._live: dict[ResponseId, Remembered] = {}
        self._kept: OrderedDict[ResponseId, Remembered] = OrderedDict()
        self._by_digest: dict[bytes, ResponseId] = {}
        self._responses = Counter[UserId]()
        self._tokens = Counter[UserId]()

    def _find(self, user_id: UserId, response_id: ResponseId) -> Remembered | None:
        found = self._live.get(response_id) or self._kept.get(response_id)
        if found is None or not found.named:
            return None
        return found if found.response.user_id == user_id else None

    async def after_response(self, user_id: UserId, response_id: ResponseId) -> Branch | None:
        found = self._find(user_id, response_id)
        if found is None:
            return None
        if response_id in self._kept:
            self._kept.move_to_end(response_id)
        return found.branch

    async def accept(self, entry: Entry, ask: Ask, written: Callable[[], None]) -> Acceptance:
        await self._usage.let_in(ask)
        written()
        nodes = entry.inputs if entry.reply is None else (*entry.inputs, entry.reply)
        response = entry.response
        self._live[response.view.id] = Remembered(
            session_id=entry.session_id,
            path=(*entry.path, *nodes),
            head=entry.head,
            reads=entry.reads,
            response=response,
        )
        return Acceptance(
            messages=(),
            response=response.view,
            conversation=None,
            fresh=True,
            compared=response.asked.compared,
        )

    async def finish(self, outcome: Outcome) -> None:
        await self._usage.leave(outcome.view.id, cost_of(outcome))
        found = self._live.pop(outcome.view.id, None)
        if found is None:
            return
        response = msgspec.structs.replace(found.response, view=outcome.view, text=outcome.text)
        path = found.path
        if outcome.reply_id is not None:
            reply = msgspec.structs.replace(
                path[-1], text=outcome.text, token_ids=outcome.token_ids, seam=outcome.seam
            )
            path = (*path[:-1], reply)
        self._keep(
            msgspec.structs.replace(
                found, response=response, path=path, path_digest=outcome.path_digest
            )
        )

    def _keep(self, turn: Remembered) -> None:
        user_id, response_id = turn.response.user_id, turn.response.view.id
        self._kept[response_id] = turn
        self._responses[user_id] += 1
        self._tokens[user_id] += turn.tokens
        if turn.path_digest is not None:
            self._by_digest[turn.path_digest] = response_id
        while (
            self._responses[user_id] > KEPT_RESPONSES_PER_USER
            or self._tokens[user_id] > KEPT_TOKENS_PER_USER
        ):
            self._let_go(next(o for o in self._kept.values() if o.response.user_id == user_id))
        while len(self._kept) > KEPT_RESPONSES or self._tokens.total() > KEPT_TOKENS:
            self._let_go(next(iter(self._kept.values())))

    def _let_go(self, turn: Remembered) -> None:
        user_id, response_id = turn.response.user_id, turn.response.view.id
        del self._kept[response_id]
        for counts, amount in ((self._responses, 1), (self._tokens, turn.tokens)):
            counts[user_id] -= amount
            if not counts[user_id]:
                del counts[user_id]
        if turn.path_digest is not None and self._by_digest[turn.path_digest] == response_id:
            del self._by_digest[turn.path_digest]

    def forget_user(self, user_id: UserId) -> None:
        """Let go whatever is of a user who is no more; what is live has been stopped before."""
        self._usage.forget_user(user_id)
        for turn in [one for one in self._kept.values() if one.response.user_id == user_id]:
            self._let_go(turn)

    async def recall(self, user_id: UserId, digests: Sequence[bytes]) -> Branch | None:
        response_id = next(
            (self._by_digest[one] for one in digests if one in self._by_digest), None
        )
        if response_id is None:
            return None
        turn = self._kept[response_id]
        if turn.response.user_id != user_id:
            return None
        self._kept.move_to_end(response_id)
        return turn.branch

    async def leave(self, user_id: UserId, response_id: ResponseId) -> None:
        """Nobody asks for this ended response any more; its words can still be recalled."""
        found = self._find(user_id, response_id)
        if found is None or response_id not in self._kept:
            return
        if found.path_digest is None:
            self._let_go(found)
        else:
            self._kept[response_id] = msgspec.structs.replace(found, named=False)

    async def response(self, user_id: UserId, response_id: ResponseId) -> StoredResponse | None:
        found = self._find(user_id, response_id)
        return None if found is None else found.response

    async def inputs(self, response: StoredResponse) -> tuple[MessageView, ...]:
        found = self._find(response.user_id, response.view.id)
        if found is None:
            return ()
        wanted = set(response.asked.input_ids)
        return tuple(
            rows.message_view(node, found.session_id) for node in found.path if node.id in wanted
        )

    async def delete_response(self, user_id: UserId, response_id: ResponseId) -> Removed | None:
        found = self._find(user_id, response_id)
        if found is None:
            return None
        if response_id in self._kept:
            self._let_go(found)
        self._live.pop(response_id, None)
        others = (*self._live.values(), *self._kept.values())
        is_left = any(one.session_id == found.session_id for one in others)
        return Removed(session_id=None if is_left else found.session_id)
