"""Everything that lives as long as the server, each part once, and the order in which it runs.

A handler gets a part by naming it, so a new one is a line in `Service`; what runs in the background
is entered in `running`.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar
from litestar.di import Provide

from app.chat.apart import Apart
from app.chat.chronicle import Chronicle
from app.chat.conversations import Conversations
from app.chat.departures import Departures, forget_strays
from app.chat.disposal import Disposal
from app.chat.eventlog import EventLogs
from app.chat.export import Export
from app.chat.files import Extraction
from app.chat.hub import Hub
from app.chat.imports import Imports
from app.chat.items import Items
from app.chat.library import Library
from app.chat.misses import Misses
from app.chat.overview import Overview
from app.chat.presence import Pages
from app.chat.search import Search
from app.chat.shares import Shares
from app.chat.supervisor import Supervisor
from app.chat.versions import Versions
from app.chat.warming import Warming
from app.chat.watching import Watching
from app.db.base import Database
from app.db.revisions import check_revision
from app.db.types import QuotaKind
from app.people.accounting import Accounting
from app.people.accounts import Accounts
from app.people.audit import Audit
from app.people.groups import Groups
from app.people.invitations import Invitations
from app.people.keys import Keys
from app.people.logins import Logins
from app.people.oidc import Oidc
from app.people.provider import Provider
from app.people.quotas import Defaults, Quotas
from app.people.recovery import Recovery
from app.people.rights import Rights
from app.people.usage import Usage
from app.routes.gate import Gate
from app.routes.oidc import CALLBACK
from app.settings import Settings
from engine.api import Engine
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long live turns may go on when the server stops; container runtimes kill after ten."""


class Service:
    """The parts, by the names under which handlers ask for them."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.db = Database(settings.database_url)
        self.accounts = Accounts(self.db)
        self.logins = Logins(self.db, self.accounts)
        self.invitations = Invitations(self.db, self.accounts)
        self.oidc = Oidc(
            self.db,
            self.logins,
            self.invitations,
            provider=_provider(settings),
            domains=settings.oidc_domains,
            roles=settings.oidc_roles,
        )
        self.recovery = Recovery(self.db, self.accounts, self.logins)
        self.groups = Groups(self.db)
        self.keys = Keys(self.db, self.accounts)
        self.hub = Hub()
        self.logs = EventLogs()
        self.quotas = Quotas(self.db, default_quotas(settings))
        self.usage = Usage(self.db, self.quotas)
        self.conversations = Conversations(self.db, self.hub, self.usage)
        self.library = Library(self.db, self.usage)
        self.versions = Versions(self.db)
        self.disposal = Disposal(self.db, self.library)
        self.search = Search(self.db)
        self.apart = Apart()
        self.extraction = Extraction(self.apart)
        self.export = Export(self.db)
        self.imports = Imports(self.db, self.hub, self.apart, self.usage)
        self.supervisor = Supervisor(
            self.db, engine, self.logs, self.hub, usage=self.usage, titles=settings.titles
        )
        self.summaries = self.supervisor.summaries
        self.items = Items(self.db, self.supervisor, self.usage, self.engine)
        self.departures = Departures(self.db, self.supervisor, engine)
        self.heads = self.supervisor.heads
        self.board = self.supervisor.liveness.board
        self.pages = Pages(self.supervisor.liveness, self.supervisor.drafts)
        self.watching = Watching(engine, self.board)
        self.misses = Misses(self.db)
        self.audit = Audit(self.db)
        self.chronicle = Chronicle(engine, self.audit)
        self.accounting = Accounting(self.db, self.audit)
        self.overview = Overview(
            engine, self.misses, self.audit, logs=self.logs, liveness=self.supervisor.liveness
        )
        self.shares = Shares(
            engine,
            self.audit,
            self.logs,
            quotas=self.quotas,
            pinned_shares=(settings.pinned_share, settings.pinned_share_per_user),
        )
        self.warming = Warming(self.db, engine, self.library, self.heads)
        self.rights = Rights(self.accounts.revocations, self.logins, self.keys)
        self.gate = Gate(settings, self.logins, self.keys, self.rights, usage=self.usage)

    @contextlib.asynccontextmanager
    async def running(self, _: Litestar) -> AsyncIterator[None]:
        """The app's lifespan. Raises `WrongRevision` before anything is touched."""
        await check_revision(self.settings.database_url)
        async with contextlib.aclosing(self.db), contextlib.aclosing(self.oidc):
            await self._let_in_the_first()
            await self.logins.recall()
            await self.library.ensure_default()
            await self._forget_strays()
            async with (
                self.rights.running(),
                self.supervisor.running(),
                self.watching.running(),
                self.chronicle.running(),
                self.departures.running(),
                self.warming.running(),
                self.search.running(),
            ):
                yield
                await self.drain()

    async def _let_in_the_first(self) -> None:
        """The admin and the key that the settings name, for starts without a person."""
        settings = self.settings
        if settings.admin_email is not None and settings.admin_password is not None:
            await self.invitations.ensure_admin(settings.admin_email, settings.admin_password)
        if settings.api_key is not None:
            await self.keys.ensure_key(settings.api_key)

    async def _forget_strays(self) -> None:
        with contextlib.suppress(EngineError):  # it is gone again; the next start looks
            if strays := await forget_strays(self.db, self.engine):
                LOG.warning("forgot what was parked of %d deleted conversations", strays)

    async def drain(self) -> None:
        """Everything before the sockets close. Idempotent."""
        self.gate.stop()
        await self.supervisor.drain(GRACE_S)
        self.gate.closing.set()

    async def welcome(self) -> str:
        """What a person reads when the server is up."""
        words = f"Keepwarm is on {self.settings.public_url}"
        token = await self.invitations.first_admin_link()
        if token is not None:
            words += (
                "\nThere is no administrator yet. Open this link once to become it:"
                f"\n{self.settings.public_url}/setup#token={token}"
            )
        return words

    def dependencies(self) -> dict[str, Provide]:
        """What a handler gets by naming it."""
        return {name: _always(part) for name, part in vars(self).items()}


def default_quotas(settings: Settings) -> Defaults:
    """What holds for everybody of whom nothing else is said."""
    return {
        QuotaKind.REQUESTS: settings.requests_per_day,
        QuotaKind.TOKENS: settings.tokens_per_day,
        QuotaKind.GENERATIONS: settings.generations_per_user,
        QuotaKind.SOCKETS: settings.sockets_per_user,
        QuotaKind.STORED: settings.stored_per_user_bytes,
        QuotaKind.KEPT_WARM: settings.kept_warm_per_user_bytes,
    }


def _provider(settings: Settings) -> Provider | None:
    issuer, client_id = settings.oidc_issuer, settings.oidc_client_id
    if issuer is None or client_id is None or settings.oidc_client_secret is None:
        return None
    callback_url = settings.public_url + CALLBACK
    return Provider(
        issuer,
        client_id,
        settings.oidc_client_secret,
        callback_url,
        role_claim=settings.oidc_role_claim,
    )


def _always(part: object) -> Provide:
    def provide() -> Any:
        return part

    return Provide(provide, sync_to_thread=False)
