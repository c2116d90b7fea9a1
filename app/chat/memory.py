"""The ledger of what must not be stored (`store: false`): memory only, bounded, oldest out first.

A turn holds its whole path by reference, so a branch costs its new nodes alone and does not depend
on what was let go. What is live is never let go.
"""

from collections import OrderedDict

import msgspec

from app.chat import rows
from app.chat.ledger import Acceptance, Branch, Entry, Head, Node, Outcome, StoredResponse
from app.db.types import VersionRef
from app.events import MessageView
from app.ids import ConversationId, ResponseId, UserId

KEPT_RESPONSES = 4_096
"""Ended responses that are remembered, of all users together."""
KEPT_RESPONSES_PER_USER = 256


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A response and everything on the way to it, its own message last."""

    session_id: ConversationId
    path: tuple[Node, ...]
    head: Head
    reads: tuple[VersionRef, ...]
    response: StoredResponse


class MemoryLedger:
    """Keeps turns until others push them out; see `Ledger`."""

    def __init__(self) -> None:
        self._live: dict[ResponseId, Remembered] = {}
        self._kept: OrderedDict[ResponseId, Remembered] = OrderedDict()
        self._kept_by_user: dict[UserId, int] = {}

    def _find(self, user_id: UserId, response_id: ResponseId) -> Remembered | None:
        found = self._live.get(response_id) or self._kept.get(response_id)
        return found if found is not None and found.response.user_id == user_id else None

    async def after_response(self, user_id: UserId, response_id: ResponseId) -> Branch | None:
        found = self._find(user_id, response_id)
        if found is None:
            return None
        if response_id in self._kept:
            self._kept.move_to_end(response_id)
        return Branch(
            session_id=found.session_id,
            conversation=None,
            reads=found.reads,
            path=found.path,
            head=found.head,
            last=found.response,
        )

    async def accept(self, entry: Entry) -> Acceptance:
        nodes = entry.inputs if entry.reply is None else (*entry.inputs, entry.reply)
        response = entry.response
        self._live[response.view.id] = Remembered(
            session_id=entry.session_id,
            path=(*entry.path, *nodes),
            head=entry.head,
            reads=entry.reads,
            response=response,
        )
        return Acceptance(messages=(), response=response.view, conversation=None, fresh=True)

    async def finish(self, outcome: Outcome) -> None:
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
        self._keep(msgspec.structs.replace(found, response=response, path=path))

    def _keep(self, turn: Remembered) -> None:
        user_id = turn.response.user_id
        self._kept[turn.response.view.id] = turn
        self._kept_by_user[user_id] = self._kept_by_user.get(user_id, 0) + 1
        if self._kept_by_user[user_id] > KEPT_RESPONSES_PER_USER:
            oldest = next(one for one in self._kept.values() if one.response.user_id == user_id)
            self._let_go(oldest)
        elif len(self._kept) > KEPT_RESPONSES:
            self._let_go(next(iter(self._kept.values())))

    def _let_go(self, turn: Remembered) -> None:
        user_id = turn.response.user_id
        del self._kept[turn.response.view.id]
        self._kept_by_user[user_id] -= 1
        if not self._kept_by_user[user_id]:
            del self._kept_by_user[user_id]

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

    async def delete_response(self, user_id: UserId, response_id: ResponseId) -> bool:
        found = self._find(user_id, response_id)
        if found is None:
            return False
        if response_id in self._kept:
            self._let_go(found)
        self._live.pop(response_id, None)
        return True
