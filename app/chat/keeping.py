"""What a user has kept warm, against their quota: marked conversations, and holds of API clients.

Asked for, it is refused where there is no room. What grows beyond the quota afterwards is let go of: a
marked conversation loses its mark, and says so like any other change; a hold is not taken again. A
conversation that is both counts once.
"""

import logging

from app.chat.conversations import Changes, Conversations
from app.chat.holds import Holds
from app.chat.liveness import Liveness, session_of
from app.errors import AppError
from app.events import ConversationView
from app.ids import ConversationId, UserId
from app.people.usage import Usage
from engine.api import Engine
from engine.errors import EngineError

LOG = logging.getLogger(__name__)


class Keeping:
    """One per server."""

    def __init__(
        self,
        engine: Engine,
        conversations: Conversations,
        liveness: Liveness,
        *,
        holds: Holds,
        usage: Usage,
    ) -> None:
        self._engine = engine
        self._conversations = conversations
        self._liveness = liveness
        self._holds = holds
        self._usage = usage

    async def recall(self) -> None:
        """What everybody keeps warm, at the start."""
        for user_id, conversation_id in await self._conversations.kept_warm():
            self._liveness.keep_warm(session_of(user_id, conversation_id), kept=True)

    async def change(
        self, user_id: UserId, conversation_id: ConversationId, changes: Changes
    ) -> ConversationView:
        """Raises what `Conversations.change` does, and `EngineError` where it is away."""
        token_bytes = (await self._engine.info()).kv_bytes_per_token if changes.kept_warm else 0
        view = await self._conversations.change(
            user_id,
            conversation_id,
            changes,
            kv_bytes_per_token=token_bytes,
            held=self._holds.tokens_of(user_id),
        )
        subject = session_of(user_id, conversation_id)
        self._liveness.keep_warm(subject, kept=view.kept_warm)
        return view

    async def grown(self, user_id: UserId, conversation_id: ConversationId | None) -> None:
        """A turn has ended there: it stays kept warm if there is still room for it. Never raises."""
        if conversation_id is None:
            return
        subject = session_of(user_id, conversation_id)
        if not self._liveness.keeps(subject):
            return
        try:
            token_bytes = (await self._engine.info()).kv_bytes_per_token
            let_go = await self._conversations.let_go_of_too_much(
                user_id,
                conversation_id,
                kv_bytes_per_token=token_bytes,
                held=self._holds.tokens_of(user_id),
            )
        except (AppError, EngineError):
            return  # the next turn is looked at as well
        except Exception:  # its turn has ended all the same
            LOG.exception("%s was not measured against what may be kept warm", conversation_id)
            return
        if let_go:
            self._liveness.keep_warm(subject, kept=False)

    async def kept_bytes(self, user_id: UserId) -> int | None:
        """How much KV a user has kept warm now; None while the engine is away."""
        held = self._holds.tokens_of(user_id)
        try:
            token_bytes = (await self._engine.info()).kv_bytes_per_token
        except EngineError:
            return None
        tokens = await self._usage.kept_tokens(user_id, besides=held)
        return (tokens + sum(held.values())) * token_bytes
