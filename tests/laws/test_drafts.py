"""Laws 2, 11 and 17 for drafts, over a real server: what they save, and that they leave no trace."""

import asyncio
import contextlib
import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.chat.typed import settled, shared_start
from app.db.types import AccountRole
from app.frames import Draft, Presence, PresenceState
from app.ids import ConversationId, MessageId
from engine.api import Engine, Message, Receipt, RenderRequest, RetentionClass, Role, Seam
from engine.model.template import Renderer
from tests.kit.engines import opened
from tests.kit.model import loaded_model
from tests.kit.peers import somebody_at
from tests.kit.server import POLL_S, Server, fork_server
from tests.kit.serving import WAIT_S, Serving, serving
from tests.kit.tab import Person, Tab, browser, person

MESSAGE = " ".join(
    f"In harbour {at} the keeper of the lamp wrote down the wind, the tide and the names of ships."
    for at in range(10)
)
"""About 200 tokens."""
AGAIN_S = 0.25
"""After so long a socket's next draft is heard for certain: `DRAFTS_PER_SOCKET`."""
SECRET = "The quokka of Zanzibar forges lanterns out of amber marmalade tonight"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fork_server(KEEPWARM_THREADS="1") as running:
        yield running.wait_until_rested()  # whatever is computed from now on is a test's


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    loaded = loaded_model()
    return Renderer(loaded.tokenizer, loaded.eos_token_ids)


def ids_of(renderer: Renderer, text: str) -> tuple[int, ...]:
    message = Message(role=Role.USER, text=text)
    request = RenderRequest(messages=(message,), seam=Seam.CLOSED, opens_reply=True)
    return renderer.render(request).token_ids


async def open_engine() -> Engine:
    return await opened()


async def full_drafts(admin: Person) -> int:
    """How many jobs were computed to their planned ends."""
    stats = (await admin.client.get("/api/status")).json()["stats"]
    count: int = stats["finished_jobs"].get("length", 0)
    return count


async def used_tokens(admin: Person) -> int:
    """How many tokens were computed for drafts and found by turns."""
    stats = (await admin.client.get("/api/status")).json()["stats"]
    used: int = stats["drafts"]["used"]
    return used


def draft_of(
    text: str, conversation_id: ConversationId | None, parent_id: MessageId | None = None
) -> Draft:
    return Draft(conversation_id=conversation_id, parent_id=parent_id, text=text)


async def type_in(tab: Tab, draft: Draft, admin: Person) -> None:
    """Returns when the draft is computed; one that came too fast was ignored and is said again."""
    before = await full_drafts(admin)
    while await full_drafts(admin) == before:
        await tab.send(draft)
        with contextlib.suppress(TimeoutError):  # a socket that is flooded is closed
            async with asyncio.timeout(AGAIN_S):
                while await full_drafts(admin) == before:  # noqa: ASYNC110  it has no event
                    await asyncio.sleep(POLL_S)


async def receipt_of(
    tab: Tab, conversation_id: ConversationId, text: str, parent_id: MessageId | None = None
) -> tuple[Receipt, MessageId]:
    accepted = await tab.say(conversation_id, text, parent_id)
    ended = await tab.taste(accepted.response.id)
    assert ended.response.receipt is not None
    return ended.response.receipt, accepted.response.message_id


async def test_02_of_a_typed_message_only_the_end_is_computed_when_it_is_sent(server, renderer):
    async with person(server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        _, parent_id = await receipt_of(tab, conversation_id, "Tell me of lighthouses.")
        for end in (300, 500, 700, len(MESSAGE) - 12):
            await type_in(tab, draft_of(MESSAGE[:end], conversation_id, parent_id), somebody)

        receipt, _ = await receipt_of(tab, conversation_id, MESSAGE, parent_id)

    whole, draft = ids_of(renderer, MESSAGE), MESSAGE[: len(MESSAGE) - 12]
    kept = shared_start(ids_of(renderer, draft), ids_of(renderer, settled(draft)))
    assert len(whole) > 200
    assert whole[: len(kept)] == kept
    assert receipt.computed_tokens <= len(whole) - len(kept) <= 20


async def test_02_of_a_finished_message_one_token_is_computed_when_it_is_sent(server):
    async with person(server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        _, parent_id = await receipt_of(tab, conversation_id, "Tell me of harbours.")
        for sentence in (MESSAGE.partition(". ")[0] + ".", MESSAGE):
            await type_in(tab, draft_of(sentence, conversation_id, parent_id), somebody)

        receipt, _ = await receipt_of(tab, conversation_id, MESSAGE, parent_id)

    assert receipt.computed_tokens == 1


async def test_02_a_draft_that_was_not_sent_costs_nothing_but_itself(server, renderer):
    async with person(server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        _, parent_id = await receipt_of(tab, conversation_id, "Say yes.")
        await type_in(tab, draft_of(MESSAGE, conversation_id, parent_id), somebody)

        receipt, _ = await receipt_of(tab, conversation_id, "Something else.", parent_id)

    assert receipt.computed_tokens <= len(ids_of(renderer, "Something else."))


async def test_02_a_draft_of_a_new_conversation_is_a_hit_in_its_first_turn(server):
    async with person(server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
        before = await used_tokens(somebody)
        await type_in(tab, draft_of(MESSAGE, None), somebody)
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)

        receipt, _ = await receipt_of(tab, conversation_id, MESSAGE)
        used = await used_tokens(somebody) - before

    assert receipt.computed_tokens <= 20
    assert used > 180


async def test_11_anothers_draft_of_the_same_text_is_no_hit(server, renderer):
    text = f"Only once: {MESSAGE}"
    async with (
        person(server, AccountRole.ADMIN) as one,
        person(server) as other,
        one.tab() as tab,
        other.tab() as theirs,
    ):
        await type_in(tab, draft_of(text, await one.conversation()), one)
        conversation_id = await other.conversation()
        await theirs.subscribe(conversation_id)

        receipt, _ = await receipt_of(theirs, conversation_id, text)

    assert receipt.cached_by_source.session == 0
    # The glue before the text belongs to the message, so it is computed as well.
    assert receipt.computed_tokens >= len(ids_of(renderer, text))


# ---------------------------------------------------------------- no trace


def traces(renderer: Renderer) -> list[bytes]:
    """The secret as text, and ids from its middle as databases and parked segments write them."""
    inner = ids_of(renderer, SECRET)[6:14]
    written = ",".join(map(str, inner))
    return [b"quokka", written.encode(), *(array(kind, inner).tobytes() for kind in "HIQ")]


def finds(folder: Path, renderer: Renderer) -> list[str]:
    """Files below the folder that hold a trace; the model's own are left out."""
    signs = traces(renderer)
    return [
        str(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and any(sign in file.read_bytes() for sign in signs)
    ]


def values(folder: Path) -> Iterator[object]:
    """Every value of every table."""
    (file,) = (folder / "data").glob("*.db")
    with contextlib.closing(sqlite3.connect(file)) as db:
        tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        for (table,) in tables:
            for row in db.execute(f'select * from "{table}"'):  # noqa: S608
                yield from row


@pytest.mark.row("drafts")
async def test_17_a_draft_is_in_no_table_no_file_and_no_log(renderer):
    with fork_server(KEEPWARM_THREADS="1") as server:
        await asyncio.to_thread(server.wait_until_rested)
        async with person(server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
            conversation_id = await somebody.conversation()
            await tab.subscribe(conversation_id)
            _, parent_id = await receipt_of(tab, conversation_id, "Say yes.")
            for known in (conversation_id, None):
                await type_in(tab, draft_of(SECRET, known, parent_id if known else None), somebody)
            typed = finds(server.folder, renderer)
        stored = [str(value) for value in values(server.folder)]
        server.stop()
        stopped = finds(server.folder, renderer)

        with fork_server(server.folder, server.port, KEEPWARM_THREADS="1") as again:
            async with browser(again, somebody.email) as back, back.tab() as tab:
                await tab.subscribe(conversation_id)
                await receipt_of(tab, conversation_id, SECRET, parent_id)
            again.stop()
        sent = finds(server.folder, renderer)

    assert typed == stopped == []
    assert "Say yes." in stored
    assert not [value for value in stored if "quokka" in value]
    assert {Path(file).suffix for file in sent} >= {".db", ".safetensors"}, "it would be found"


# ---------------------------------------------------------------- who is there


async def test_09_what_somebody_looks_at_is_live_and_what_is_hidden_is_recent(tmp_path):
    with serving(tmp_path, open_engine) as site:
        async with somebody_at(site) as somebody, somebody.tab() as tab:
            conversation_id = await somebody.conversation()
            await tab.subscribe(conversation_id)
            await receipt_of(tab, conversation_id, "Say yes.")
            async with asyncio.timeout(WAIT_S):
                for state, expected in (
                    (PresenceState.TYPING, RetentionClass.LIVE),
                    (PresenceState.HIDDEN, RetentionClass.RECENT),
                    (PresenceState.OPEN, RetentionClass.LIVE),
                ):
                    await tab.send(Presence(conversation_id=conversation_id, state=state))
                    while await asyncio.to_thread(retention_at, site, conversation_id) != expected:  # noqa: ASYNC110  it has no event
                        await asyncio.sleep(POLL_S)


def retention_at(site: Serving, conversation_id: ConversationId) -> RetentionClass:
    snapshot = site.do(site.service.engine.snapshot())
    return next(
        view.retention for view in snapshot.sessions if str(view.session_id) == conversation_id
    )
