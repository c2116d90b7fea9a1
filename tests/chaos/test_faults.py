"""A machine that fails under a server, and is well again: what is told meanwhile, and what is lost."""

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.events import ResponseEnded, ResponseStatus, TextDelta
from app.frames import ErrorFrame, TurnCreate
from app.ids import ConversationId
from engine.api import Receipt
from tests.kit.db import finished, new_postgres_url, postgres_folder, start_postgres
from tests.kit.echo import REPLY_TOKENS
from tests.kit.peers import engine_of, open_engine
from tests.kit.server import complaint, fork_server
from tests.kit.serving import Serving, serving
from tests.kit.tab import LONG, Person, Tab, browser, person

DISK = "8m"
DISK_BYTES = 32 << 20
STREAMS = 2


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


# ---------------------------------------------------------------- a server that is asked to stop


async def test_17_a_server_that_is_asked_to_stop_ends_all_closes_all_and_parks_all():
    """What is said is refused from then on; who hears an answer hears its end, then the close."""
    with fork_server() as server:
        async with contextlib.AsyncExitStack() as stack:
            people = [await stack.enter_async_context(person(server)) for _ in range(STREAMS)]
            tabs = [await stack.enter_async_context(one.tab()) for one in people]
            talks = [(one, await one.conversation()) for one in people]
            begun = []
            for number, ((_, conversation_id), tab) in enumerate(zip(talks, tabs, strict=True)):
                await tab.subscribe(conversation_id)
                # Of their own from the first word on: what is parked is so for each of them.
                accepted = await tab.say(conversation_id, f"{number}. {LONG}")
                await tab.event(accepted.response.id, TextDelta)
                begun.append(accepted.response.id)
            spare = await people[0].conversation()

            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            late = await handshake_refused(people[0])
            refused = await refusal(tabs[0], hello(spare))
            ends = [
                await tab.event(response_id, ResponseEnded)
                for tab, response_id in zip(tabs, begun, strict=True)
            ]
            codes = [await closed(tab) for tab in tabs]
            status = await stopping

            with fork_server(server.folder, server.port) as again:
                receipts = [await receipt_of_more(*talk) for talk in talks]
                again.stop()

    assert late == 503
    assert refused.error.code == "unavailable"
    assert all(end.response.status.ended and end.text for end in ends)
    assert codes == [1012] * STREAMS
    assert status == 0
    for end, receipt in zip(ends, receipts, strict=True):
        before = end.response.receipt
        assert before is not None
        assert receipt.cached_tokens >= before.prompt_tokens + before.output_tokens - 1


async def handshake_refused(somebody: Person) -> int:
    """The status, as soon as one is."""
    while True:
        try:
            async with somebody.socket():
                pass
        except InvalidStatus as refusal:
            return refusal.response.status_code


async def closed(tab: Tab) -> int | None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await tab.receive()
    return tab.socket.close_code


async def receipt_of_more(somebody: Person, conversation_id: ConversationId) -> Receipt:
    async with somebody.tab() as tab:
        subscribed = await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "And then?", subscribed.leaf_id)
        receipt = (await tab.taste(accepted.response.id)).response.receipt
    assert receipt is not None
    return receipt
