"""The commands of `keepwarm admin`: people and keys, also beside a server that is running.

A server finds what they change within a second (`people.rights`, `chat.departures`). They import what
they need when they run, as all commands do.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from app.console import run, settings
from app.errors import NotFound
from app.ids import KeyId

if TYPE_CHECKING:
    from app.db.base import Database
    from app.people.accounts import AccountView
    from app.people.groups import GroupView

LONGEST_KEY_DAYS = 3660
ROLES = ("admin", "member", "auditor")
SCOPES = ("read", "write", "figures")
QUOTAS = (
    "requests_per_day",
    "tokens_per_day",
    "generations",
    "sockets",
    "stored_bytes",
    "kept_warm_bytes",
)


class People:
    """Accounts and keys of the database that the settings name, for one command."""

    def __init__(self, db: "Database") -> None:
        from app.people.accounts import Accounts
        from app.people.groups import Groups
        from app.people.keys import Keys
        from app.people.quotas import Quotas

        self.groups = Groups(db)
        self.quotas = Quotas(db)
        self.accounts = Accounts(db)
        self.keys = Keys(db, self.accounts)

    async def owner(self, email: str | None) -> "AccountView":
        """The account of this address, or the first administrator's. Raises `NotFound`."""
        if email is not None:
            return await self.accounts.find(email)
        from app.db.types import AccountRole

        for account in await self.accounts.list():
            if account.role is AccountRole.ADMIN:
                return account
        raise NotFound("There is no administrator yet: keepwarm admin user create EMAIL --admin")

    async def group(self, name: str) -> "GroupView":
        """Raises `NotFound`."""
        for group in await self.groups.list():
            if group.name == name:
                return group
        raise NotFound(f"There is no group {name!r}.")


@contextlib.asynccontextmanager
async def people() -> AsyncIterator[People]:
    """Raises `WrongRevision` where the database is not ready for them."""
    from app.db.base import Database
    from app.db.revisions import check_revision
    from app.people.audit import COMMAND, act_as

    act_as(COMMAND)
    url = settings().database_url
    await check_revision(url)
    async with contextlib.aclosing(Database(url)) as db:
        yield People(db)


@click.group()
def admin() -> None:
    """People and keys."""


# ---------------------------------------------------------------- accounts


@admin.group()
def user() -> None:
    """Accounts."""


def to_account(act: Callable[[People, "AccountView"], Awaitable[None]], email: str) -> None:
    """Do something to the account of this address."""

    async def work() -> None:
        async with people() as found:
            await act(found, await found.accounts.find(email))

    run(work())


def asked(password: str | None) -> str:
    """A new password, typed twice where it is not given."""
    typed: str = password or click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return typed


@user.command("create")
@click.argument("email")
@click.option("--name", default=None, help="By default what stands before the @.")
@click.option("--admin", "is_admin", is_flag=True, help="Make it an administrator.")
@click.option("--password", default=None, help="Asked for when left out.")
def create_user(email: str, name: str | None, is_admin: bool, password: str | None) -> None:
    """Make an account."""
    from app.db.types import AccountRole

    secret = asked(password)

    async def work() -> None:
        async with people() as found:
            role = AccountRole.ADMIN if is_admin else AccountRole.MEMBER
            await found.accounts.create_user(
                email, name or email.split("@", maxsplit=1)[0], secret, role
            )
        click.echo(f"{email} can sign in now.")

    run(work())


@user.command("list")
def list_users() -> None:
    """Show all accounts."""

    async def work() -> None:
        async with people() as found:
            for account in await found.accounts.list():
                state = "  disabled" if account.is_disabled else ""
                click.echo(f"{account.email}  {account.role}  {account.name}  {account.id}{state}")

    run(work())


@user.command("password")
@click.argument("email")
@click.option("--password", default=None, help="Asked for when left out.")
def set_password(email: str, password: str | None) -> None:
    """Give an account a new password; it is signed out everywhere, its keys stay."""
    secret = asked(password)

    async def act(found: People, account: "AccountView") -> None:
        await found.accounts.set_password(account.id, secret)
        click.echo(f"{account.email} has a new password and is signed out everywhere.")

    to_account(act, email)


@user.command("role")
@click.argument("email")
@click.argument("role", type=click.Choice(ROLES))
def set_role(email: str, role: str) -> None:
    """Say what an account is for: members chat, auditors look at figures, admins do all."""
    from app.db.types import AccountRole

    async def act(found: People, account: "AccountView") -> None:
        await found.accounts.set_role(account.id, AccountRole(role))
        click.echo(f"{account.email} is {role} now.")

    to_account(act, email)


@user.command("disable")
@click.argument("email")
def disable_user(email: str) -> None:
    """Shut an account out and stop what is written for it; what it owns stays."""

    async def act(found: People, account: "AccountView") -> None:
        await found.accounts.disable(account.id)
        click.echo(f"{account.email} is shut out.")

    to_account(act, email)


@user.command("enable")
@click.argument("email")
def enable_user(email: str) -> None:
    """Let a disabled account in again."""

    async def act(found: People, account: "AccountView") -> None:
        await found.accounts.enable(account.id)
        click.echo(f"{account.email} can sign in again.")

    to_account(act, email)


@user.command("remove")
@click.argument("email")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_user(email: str, *, yes: bool) -> None:
    """Delete an account with all that it owns, for good."""
    if not yes:
        click.confirm(f"Delete {email} with all conversations, keys and documents?", abort=True)

    async def act(found: People, account: "AccountView") -> None:
        await found.accounts.remove(account.id)
        click.echo(f"{account.email} is removed.")

    to_account(act, email)


# ---------------------------------------------------------------- keys


@admin.group()
def key() -> None:
    """API keys."""


@key.command("create")
@click.option("--email", default=None, help="Whose key; by default the first administrator's.")
@click.option("--name", default="command line", help="What the key is for.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    help="What it may be used for, once or more; by default for all.",
)
@click.option(
    "--days",
    type=click.IntRange(1, LONGEST_KEY_DAYS),
    default=None,
    help="How long it lasts; by default until it is revoked.",
)
def create_key(email: str | None, name: str, scopes: tuple[str, ...], days: int | None) -> None:
    """Make a key for an account and show it, once."""
    from app.db.types import KeyScope

    async def work() -> None:
        async with people() as found:
            made = await found.keys.create(
                (await found.owner(email)).id,
                name,
                scopes=[KeyScope(one) for one in scopes or SCOPES],
                lifetime=None if days is None else timedelta(days=days),
            )
        click.echo(made.key)

    run(work())


@key.command("list")
@click.option("--email", default=None, help="Whose keys; by default the first administrator's.")
def list_keys(email: str | None) -> None:
    """Show an account's keys by their first characters."""

    async def work() -> None:
        async with people() as found:
            for view in await found.keys.list((await found.owner(email)).id):
                used, ends = on(view.last_used_at, "used"), on(view.expires_at, "ends")
                scopes = ",".join(view.scopes)
                click.echo(f"{view.prefix}...  {view.name}  {view.id}  {scopes}  {used}  {ends}")

    run(work())


def on(moment: float | None, word: str) -> str:
    """`used never`, `ends 2026-12-31`: in days of UTC."""
    day = "never" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
    return f"{word} {day}"


@key.command("revoke")
@click.argument("key_id")
@click.option("--email", default=None, help="Whose key; by default the first administrator's.")
def revoke_key(key_id: str, email: str | None) -> None:
    """End a key, also for a server that is running."""

    async def work() -> None:
        async with people() as found:
            await found.keys.revoke((await found.owner(email)).id, KeyId(key_id))
        click.echo("The key is revoked.")

    run(work())


# ---------------------------------------------------------------- quotas


@admin.group()
def quota() -> None:
    """How much a user, or each member of a group, may use."""


def subject(command: Callable[..., None]) -> Callable[..., None]:
    """Options of a command about one user or one group."""
    command = click.option("--email", default=None, help="Of this user.")(command)
    return click.option("--group", default=None, help="Of each member of this group.")(command)


def one_of(email: str | None, group: str | None) -> None:
    if (email is None) is (group is None):
        raise click.UsageError("Name a user (--email) or a group (--group).")


@quota.command("set")
@click.argument("kind", type=click.Choice(QUOTAS))
@click.argument("allowed", metavar="NUMBER|none")
@subject
def set_quota(kind: str, allowed: str, email: str | None, group: str | None) -> None:
    """Allow so much; `none` is no limit."""
    from app.db.types import QuotaKind

    one_of(email, group)
    if not (allowed == "none" or allowed.isdecimal()):
        raise click.UsageError("Say a number, or `none`.")
    most = None if allowed == "none" else int(allowed)

    async def work() -> None:
        async with people() as found:
            if email is not None:
                user = await found.accounts.find(email)
                await found.quotas.set_for_user(user.id, QuotaKind(kind), most)
            else:
                known = await found.group(group or "")
                await found.quotas.set_for_group(known.id, QuotaKind(kind), most)
        click.echo(f"{kind} of {email or group}: {allowed}")

    run(work())


@quota.command("lift")
@click.argument("kind", type=click.Choice(QUOTAS))
@subject
def lift_quota(kind: str, email: str | None, group: str | None) -> None:
    """Take back what was set: groups, or the settings, decide again."""
    from app.db.types import QuotaKind

    one_of(email, group)

    async def work() -> None:
        async with people() as found:
            if email is not None:
                user = await found.accounts.find(email)
                await found.quotas.lift_for_user(user.id, QuotaKind(kind))
            else:
                known = await found.group(group or "")
                await found.quotas.lift_for_group(known.id, QuotaKind(kind))
        click.echo(f"{kind} of {email or group} is lifted.")

    run(work())


@quota.command("list")
@subject
def list_quotas(email: str | None, group: str | None) -> None:
    """Show what was set."""
    one_of(email, group)

    async def work() -> None:
        async with people() as found:
            if email is not None:
                known = await found.quotas.of_user((await found.accounts.find(email)).id)
            else:
                known = await found.quotas.of_group((await found.group(group or "")).id)
        for one in known:
            click.echo(f"{one.kind}  {'none' if one.allowed is None else one.allowed}")

    run(work())
