"""What all commands share: the settings, read once, and an end in words where a user can mend it."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import click

from app.errors import AppError
from app.settings import BadSetting, Settings
from engine.errors import EngineError


def settings() -> Settings:
    try:
        return Settings.from_env(os.environ)
    except BadSetting as error:
        raise click.ClickException(str(error)) from error


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run one command to its end, or end with words."""
    try:
        asyncio.run(work)
    except (AppError, EngineError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
