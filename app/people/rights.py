"""Whether those who came in may still be in: looked up twice a second, in one look for all of them.

What this process revokes is told at once (`revocations`); what another one does, a command beside the
server, or what runs out by itself, is found by the look. While looks succeed nobody has to ask the
database on each event; when they fail, each does.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator

from app.ids import KeyId, LoginId
from app.people.accounts import Principal
from app.people.keys import Keys
from app.people.logins import Logins
from app.people.revocations import Revocations

LOG = logging.getLogger(__name__)

LOOK_S = 0.5
STALE_S = 1.0
"""After so long without a look nothing is known."""


class Standing:
    """One open credential: who it is, and whether that is in doubt."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.doubted = asyncio.Event()
        """Set: resolve the credential anew before anything is done for it."""
        self._doubts = 0

    def doubt(self) -> None:
        self._doubts += 1
        self.doubted.set()

    async def resolve(self, who: Awaitable[Principal]) -> None:
        """Trust what `who` finds, unless a doubt came meanwhile. Raises what it raises."""
        doubts = self._doubts
        self.principal = await who
        if doubts == self._doubts:
            self.doubted.clear()


class Rights:
    """One per server; belongs to its event loop."""

    def __init__(self, revocations: Revocations, logins: Logins, keys: Keys) -> None:
        self._revocations = revocations
        self._logins = logins
        self._keys = keys
        self._standings: set[Standing] = set()
        self._looked_s = -STALE_S

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter and leave it in one task."""
        looking = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait((looking,))

    @contextlib.contextmanager
    def watching(self, standing: Standing) -> Iterator[None]:
        """Doubt the standing as soon as its credential, its user or its role is another.

        Resolve the credential after entering: what was revoked before is not told again.
        """
        subjects = standing.principal.user_id, standing.principal.credential_id
        with self._revocations.watch(standing.doubt, *subjects):
            self._standings.add(standing)
            try:
                yield
            finally:
                self._standings.remove(standing)

    def are_sure(self, standing: Standing) -> bool:
        """Whether the last look is recent and nothing is said against it since."""
        return not standing.doubted.is_set() and _now() - self._looked_s < STALE_S

    async def look(self) -> None:
        """Doubt whoever is not what they were. Raises what the database raises."""
        began_s, standings = _now(), list(self._standings)
        logins = [LoginId(_id(one)) for one in standings if one.principal.via == "login"]
        keys = [KeyId(_id(one)) for one in standings if one.principal.via == "key"]
        roles = {
            **(await self._logins.roles(logins) if logins else {}),
            **(await self._keys.roles(keys) if keys else {}),
        }
        for one in standings:
            if roles.get(one.principal.credential_id) is not one.principal.role:
                one.doubt()
        self._looked_s = began_s

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the database may be back at the next look
                LOG.exception("it could not be looked up who may still be in")
            await asyncio.sleep(LOOK_S)


def _id(standing: Standing) -> str:
    return standing.principal.credential_id


def _now() -> float:
    return asyncio.get_running_loop().time()
