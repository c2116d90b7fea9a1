"""A machine that fails under a server, and is well again: what is told meanwhile, and what is lost."""

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app.events import ResponseEnded, ResponseStatus, TextDelta
from app.frames import ErrorFrame, TurnCreate
from tests.kit.db import finished, new_postgres_url, postgres_folder, start_postgres
from tests.kit.echo import REPLY_TOKENS
from tests.kit.peers import engine_of, open_engine
from tests.kit.serving import Serving, serving
from tests.kit.tab import Tab, person

DISK = "8m"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
            yield folder
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
            return
    pytest.skip("nobody may mount a disk here")


async def is_ready(house: Serving) -> bool:
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as client:
        return (await client.get("/health/ready")).is_success


async def until_ready(house: Serving) -> None:
    async with asyncio.timeout(60):
        while not await is_ready(house):
            pass


async def refusal(tab: Tab, turn: TurnCreate) -> ErrorFrame:
    await tab.send(turn)
    return await tab.expect(ErrorFrame, lambda frame: frame.request_id == turn.request_id)


Act = Callable[[], object]


async def live_through(house: Serving, harm: Act, mend: Act) -> None:
    """An answer under way, and a turn that is said meanwhile: both are there in the end."""
    engine = engine_of(house)
    engine.ends_after = REPLY_TOKENS
    engine.hold(after_beats=2)
    async with person(house.place) as somebody, somebody.tab() as tab:
        first, second = [await somebody.conversation() for _ in range(2)]
        for conversation_id in (first, second):
            await tab.subscribe(conversation_id)
        accepted = await tab.say(first, "Hello")
        await tab.event(accepted.response.id, TextDelta)
        turn = TurnCreate(
            request_id="refused",
            conversation_id=second,
            client_message_id="once",
            parent_id=None,
            text="Hello",
        )

        await asyncio.to_thread(harm)
        refused = await refusal(tab, turn)
        was_ready = await is_ready(house)
        house.call(engine.release)
        await asyncio.to_thread(mend)
        end = await tab.event(accepted.response.id, ResponseEnded)
        await until_ready(house)
        again = await tab.say(second, "Hello", client_message_id="once")
        other = await tab.event(again.response.id, ResponseEnded)
        told = await somebody.client.get(f"/api/conversations/{second}")

    assert refused.error.code == "unavailable"
    assert not was_ready
    assert end.response.status is other.response.status is ResponseStatus.COMPLETED
    assert [one["text"] for one in told.json()["messages"]] == ["Hello", other.text]


async def test_17_on_a_full_disk_nothing_is_acknowledged_and_nothing_lost(disk: Path):
    ballast = disk / "ballast"

    def fill() -> None:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    with serving(disk / "data", open_engine) as house:
        await live_through(house, fill, ballast.unlink)


@pytest.mark.postgres
async def test_17_while_its_database_is_restarted_nothing_is_acknowledged_and_nothing_lost(
    tmp_path: Path,
):
    with postgres_folder(tmp_path) as folder:
        postgres = start_postgres(folder / "data")
        try:
            url = finished(new_postgres_url(postgres))
            with serving(tmp_path / "data", open_engine, database_url=url) as house:
                await live_through(house, postgres.stop, postgres.start)
        finally:
            postgres.cleanup()
