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
from app.ids import ConversationId
from tests.kit.db import finished, new_postgres_url, postgres_folder, start_postgres
from tests.kit.echo import REPLY_TOKENS
from tests.kit.peers import engine_of, open_engine
from tests.kit.server import complaint
from tests.kit.serving import Serving, serving
from tests.kit.tab import Tab, browser, person

DISK = "8m"
DISK_BYTES = 32 << 20


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


def hello(conversation_id: ConversationId) -> TurnCreate:
    return TurnCreate(
        request_id="refused",
        conversation_id=conversation_id,
        client_message_id="once",
        parent_id=None,
        text="Hello",
    )


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

        await asyncio.to_thread(harm)
        refused = await refusal(tab, hello(second))
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


# ---------------------------------------------------------------- a disk that fails


class FailingDisk:
    """A file system that turns read-only at its first error, as those of servers do."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "disk"
        self.folder.mkdir()
        self._image = tmp_path / "image"
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)

    def mount(self) -> None:
        options = ["-o", "loop,errors=remount-ro", str(self._image), str(self.folder)]
        subprocess.run(["mount", *options], check=True, capture_output=True)

    def fail(self) -> None:
        """Whoever has a file open there keeps it, and writes no more."""
        find = ["findmnt", "-no", "SOURCE", str(self.folder)]
        device = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
        Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1")

    def mend(self) -> None:
        """When nobody has a file open there."""
        self.unmount()
        subprocess.run(["e2fsck", "-fy", str(self._image)], check=False, capture_output=True)
        self.mount()

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    try:
        disk = FailingDisk(tmp_path)
        disk.mount()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("nobody may mount a disk here")
    yield disk
    disk.unmount()


async def test_17_on_a_disk_that_turns_read_only_nothing_is_acknowledged_and_nothing_lost(
    failing_disk: FailingDisk,
):
    data = failing_disk.folder / "data"
    with serving(data, open_engine) as house:
        engine = engine_of(house)
        engine.ends_after = REPLY_TOKENS
        engine.hold(after_beats=2)
        async with person(house.place) as somebody, somebody.tab() as tab:
            first, second = [await somebody.conversation() for _ in range(2)]
            await tab.subscribe(first)
            accepted = await tab.say(first, "Hello")
            await tab.event(accepted.response.id, TextDelta)

            failing_disk.fail()
            refused = await refusal(tab, hello(second))
            was_ready = await is_ready(house)
        house.call(engine.release)
    failing_disk.mend()
    with serving(data, open_engine) as house:
        async with browser(house.site, somebody.email) as back, back.tab() as tab:
            told = await back.client.get(f"/api/conversations/{first}")
            await tab.subscribe(second)
            again = await tab.say(second, "Hello", client_message_id="once")
            await tab.event(again.response.id, ResponseEnded)

    question, answer = told.json()["messages"]
    assert refused.error.code == "unavailable"
    assert not was_ready
    assert question["text"] == "Hello"
    assert answer["response"]["incomplete_reason"] == "interrupted"


def test_on_a_read_only_disk_no_server_starts_and_it_says_why(failing_disk: FailingDisk):
    data = failing_disk.folder / "data"
    data.mkdir()
    failing_disk.fail()

    said = complaint(failing_disk.folder, "serve")

    assert f"Cannot write to the folder {data}" in said
