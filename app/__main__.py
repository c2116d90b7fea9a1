"""The commands: serve, chat, admin (`app/admin.py`), migrate, backup, restore, doctor.

Each reads the settings once, does one thing and speaks plainly. What a user can mend is told in
words and ends with status 1 or 2; a stack trace here is a fault of ours. Each imports what it needs
when it runs: while `serve` imports the app, the engine's process is starting already.
"""

import asyncio
import importlib
import logging
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import structlog

from app.admin import admin
from app.console import run, settings
from app.launch import launched
from app.settings import SETTINGS, Settings

INDENT = "    "


def settings_table() -> str:
    """Every setting, as `serve --help` shows it."""
    lines = []
    for setting in SETTINGS:
        lines.append(f"{setting.variable}  [{setting.default.strip('`')}]")
        lines += textwrap.wrap(setting.words, 92, initial_indent=INDENT, subsequent_indent=INDENT)
    # Click leaves the lines of a paragraph alone that begins with this mark.
    return "\b\nSettings, from the environment:\n\n\b\n" + "\n".join(lines)


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
        # Of what others add to their lines nobody knows whether it is a text.
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(allow=["turn"])],
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


main.add_command(admin)

if __name__ == "__main__":
    main()
