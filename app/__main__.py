"""The commands: serve, chat, admin (user, key), migrate, backup, restore, doctor.

Each reads the settings once, does one thing and speaks plainly. What a user can mend is told in
words and ends with status 1 or 2; a stack trace here is a fault of ours. Each imports what it needs
when it runs: while `serve` imports the app, the engine's process is starting already.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import structlog

from app.errors import AppError, NotFound
from app.ids import KeyId
from app.launch import launched
from app.settings import SETTINGS, BadSetting, Settings
from engine.errors import EngineError

if TYPE_CHECKING:
    from app.db.base import Database
    from app.people.accounts import AccountView

INDENT = "    "


class People:
    """Accounts and keys of the database that the settings name, for one command."""

    def __init__(self, db: "Database") -> None:
        from app.people.accounts import Accounts
        from app.people.keys import Keys

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


def settings_table() -> str:
    """Every setting, as `serve --help` shows it."""
    lines = []
    for setting in SETTINGS:
        lines.append(f"{setting.variable}  [{setting.default.strip('`')}]")
        lines += textwrap.wrap(setting.words, 92, initial_indent=INDENT, subsequent_indent=INDENT)
    # Click leaves the lines of a paragraph alone that begins with this mark.
    return "\b\nSettings, from the environment:\n\n\b\n" + "\n".join(lines)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run one command to its end, or end with words."""
    try:
        asyncio.run(work)
    except (AppError, EngineError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


def settings() -> Settings:
    try:
        return Settings.from_env(os.environ)
    except BadSetting as error:
        raise click.ClickException(str(error)) from error


@contextlib.asynccontextmanager
async def people() -> AsyncIterator[People]:
    """Raises `WrongRevision` where the database is not ready for them."""
    from app.db.base import Database
    from app.db.revisions import check_revision

    url = settings().database_url
    await check_revision(url)
    async with contextlib.aclosing(Database(url)) as db:
        yield People(db)


def configure_logging() -> None:
    """One JSON object a line on stderr, for our loggers and everybody's; never a prompt's text."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Keepwarm: a chat server that keeps every conversation's KV cache warm."""


@main.command(epilog=settings_table())
def serve() -> None:
    """Serve the page and the API until a signal."""
    configure_logging()
    run(serving(settings()))


async def serving(found: Settings) -> None:
    async with launched(found, click.echo) as opening:
        asgi = await asyncio.to_thread(importlib.import_module, "app.asgi")
        await asgi.serve(found, opening, click.echo)


@main.command()
@click.option("--url", default=None, help="Server to talk to; by default the one set up here.")
@click.option("--key", envvar="KEEPWARM_API_KEY", required=True, help="API key.")
def chat(url: str | None, key: str) -> None:
    """Talk to a running server in the terminal."""
    from app import terminal

    sys.exit(terminal.run(url or settings().public_url, key))


@main.command()
def migrate() -> None:
    """Bring the database to this version, as `serve` does; what it holds is written to a file first."""
    from app.db import revisions

    async def work() -> None:
        found = settings()
        done = await revisions.migrate(found.database_url, found.data_dir)
        click.echo(done.words)

    run(work())


FILE = click.argument("file", type=click.Path(path_type=Path))


@main.command()
@FILE
def backup(file: Path) -> None:
    """Write the whole database to FILE, which must be new; a server may be serving it."""
    from app.db import revisions

    async def work() -> None:
        saved = await revisions.save(settings().database_url, file)
        click.echo(f"{saved.rows} rows of revision {saved.revision} are in {file}.")

    run(work())


@main.command()
@FILE
def restore(file: Path) -> None:
    """Fill a new or empty database, SQLite or PostgreSQL, from a backup of either."""
    from app.db import revisions

    async def work() -> None:
        saved = await revisions.restore(settings().database_url, file)
        click.echo(f"{saved.rows} rows are restored. The server can be started.")

    run(work())


@main.command()
def doctor() -> None:
    """Look at settings, database and model, and say what is found."""
    from app import asgi

    run(asgi.examine(settings(), click.echo))


@main.group()
def admin() -> None:
    """People and keys."""


@admin.group()
def user() -> None:
    """Accounts."""


@user.command("create")
@click.argument("email")
@click.option("--name", default=None, help="By default what stands before the @.")
@click.option("--admin", "is_admin", is_flag=True, help="Make it an administrator.")
@click.option("--password", default=None, help="Asked for when left out.")
def create_user(email: str, name: str | None, is_admin: bool, password: str | None) -> None:
    """Make an account."""
    from app.db.types import AccountRole

    secret = password or click.prompt("Password", hide_input=True, confirmation_prompt=True)

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
                click.echo(f"{account.email}  {account.role}  {account.name}  {account.id}")

    run(work())


@admin.group()
def key() -> None:
    """API keys."""


@key.command("create")
@click.option("--email", default=None, help="Whose key; by default the first administrator's.")
@click.option("--name", default="command line", help="What the key is for.")
def create_key(email: str | None, name: str) -> None:
    """Make a key for an account and show it, once."""

    async def work() -> None:
        async with people() as found:
            made = await found.keys.create((await found.owner(email)).id, name)
        click.echo(made.key)

    run(work())


@key.command("list")
@click.option("--email", default=None, help="Whose keys; by default the first administrator's.")
def list_keys(email: str | None) -> None:
    """Show an account's keys by their first characters."""

    async def work() -> None:
        async with people() as found:
            for view in await found.keys.list((await found.owner(email)).id):
                click.echo(f"{view.prefix}...  {view.name}  {view.id}")

    run(work())


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


if __name__ == "__main__":
    main()
