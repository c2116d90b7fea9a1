"""What is no more is forgotten: users who left, or were shut out, and deleted conversations.

Whoever removes an account, a route here or a command beside the server, writes a row with it. While
that row is there, whatever memory and the engine still have of the user is forgotten; a crash, or an
engine that is away, only delays it. The row goes when nothing that came in before the removal can
still be on its way. Of conversations there is no such row, for all that the engine still has of them is
on the disk: a start looks which are gone (`forget_strays`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

from sqlalchemy import delete, select

from app.chat.liveness import session_of
from app.chat.supervisor import Supervisor
from app.chat.warming import OPERATOR
from app.db.base import Database
from app.db.models import Conversation, Departure, User
from app.db.types import utc_now
from app.ids import ConversationId, UserId
from engine.api import Engine, Forget
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

LOOK_S = 0.5
RETRY_S = 5.0
"""While the engine or the database is away."""
SETTLED = timedelta(minutes=1)
"""Longer than a request that was let in takes to begin its turn."""
LOOKED_UP_AT_ONCE = 500


class Departures:
    """One per server."""

    def __init__(
        self,
        db: Database,
        supervisor: Supervisor,
        engine: Engine,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._db = db
        self._supervisor = supervisor
        self._engine = engine
        self._now = now
        self._boot_id: str | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter and leave it in one task, while the supervisor runs."""
        looking = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait((looking,))

    async def look(self) -> bool:
        """Stop what runs for who may not be here, and forget who left; False where that failed.

        Raises what the database raises.
        """
        async with self._db.read() as session:
            left = list(await session.scalars(select(Departure)))
        done = [one for one in left if await self._forget(one)]
        over = [one.user_id for one in done if self._now() - one.left_at >= SETTLED]
        if over:
            async with self._db.begin() as session:
                await session.execute(delete(Departure).where(Departure.user_id.in_(over)))
        for user_id in await self._shut_out():
            await self._supervisor.stop_user(user_id)
        return len(done) == len(left)

    async def _forget(self, departure: Departure) -> bool:
        try:
            await self._supervisor.forget_user(departure.user_id)
        except EngineError as error:
            LOG.warning("%s cannot be forgotten yet: %s", departure.user_id, error)
            return False
        except Exception:  # who left later is forgotten all the same
            LOG.exception("%s was not forgotten", departure.user_id)
            return False
        return True

    async def _shut_out(self) -> set[UserId]:
        """Those for whom something runs, and who are disabled or no more."""
        busy = self._supervisor.busy_users()
        if not busy:
            return set()
        query = select(User.id).where(User.id.in_(busy), User.disabled_at.is_(None))
        async with self._db.read() as session:
            return busy - set(await session.scalars(query))

    async def look_behind_a_start(self) -> None:
        """What was deleted while there was no engine may lie parked where the next one finds it.

        Raises `EngineError`.
        """
        boot_id = (await self._engine.info()).boot_id
        if self._boot_id not in (None, boot_id):
            await forget_strays(self._db, self._engine)
        self._boot_id = boot_id

    async def _keep_looking(self) -> None:
        while True:
            done = False
            try:
                done = await self.look()
                await self.look_behind_a_start()
            except EngineError:
                done = False  # what it holds is looked at when there is one
            except Exception:  # the database may be back at the next look
                LOG.exception("it could not be looked up who has left")
            await asyncio.sleep(LOOK_S if done else RETRY_S)


async def forget_strays(db: Database, engine: Engine) -> int:
    """Forget the KV of conversations that were deleted, and say of how many.

    For the start of a server or of its engine. A server that was killed behind a deletion, or that had
    no engine then, never came to it, and what is parked outlives both. Turns that are not stored have
    nothing parked, and lose no more than they would to the start. Raises `EngineError`.
    """
    parked = [
        session_of(UserId(view.owner_id), ConversationId(view.session_id))
        for view in (await engine.snapshot(tree=False)).sessions
        if view.owner_id != OPERATOR
    ]
    there: set[ConversationId] = set()
    for start in range(0, len(parked), LOOKED_UP_AT_ONCE):
        ids = [one.subject_id for one in parked[start : start + LOOKED_UP_AT_ONCE]]
        async with db.read() as session:
            query = select(Conversation.id).where(Conversation.id.in_(map(ConversationId, ids)))
            there.update(await session.scalars(query))
    strays = [one for one in parked if one.subject_id not in there]
    for stray in strays:
        await engine.lease(stray, Forget())
    return len(strays)
