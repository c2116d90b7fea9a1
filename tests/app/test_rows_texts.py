"""What is expected of texts, sent and unsent, one test or more a row of docs/rows.md.

`house` is a server of this process on each database, `each_server` one as its user has it.
"""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pypdf import PdfWriter
from pypdf.annotations import Link
from sqlalchemy import Connection, inspect, text
from websockets.asyncio.client import ClientConnection

from app.db.base import Database
from app.db.types import AccountRole, pack
from app.frames import Draft
from app.routes.openai.objects import PADDED_BYTES
from engine.api import JobClass
from tests.app.test_extract import pdf
from tests.kit.echo import ids_of
from tests.kit.peers import create, engine_of, until
from tests.kit.server import Server
from tests.kit.serving import Serving
from tests.kit.staff import Somebody, ask, done, somebody
from tests.kit.tab import PASSWORD, Person, person

# ---------------------------------------------------------------- texts of others

HOSTILE = '=1+1\r\nX-Forged: yes\r\n\r\n<script>alert("forged")</script>\u2028\u202e'


@pytest.mark.row("also untrusted")
async def test_names_of_others_are_data_in_every_answer_and_reach_no_header_and_no_log(
    each_server: Server,
):
    async with person(each_server, AccountRole.ADMIN) as who:
        client, conversation_id = who.client, await who.conversation()
        page = f"/api/conversations/{conversation_id}"
        turn = {"client_message_id": HOSTILE[:20], "parent_id": None, "text": HOSTILE}
        taken = [
            await client.patch(page, json={"title": HOSTILE}),
            await client.patch("/api/account", json={"name": HOSTILE}),
            await client.post("/api/keys", json={"name": HOSTILE}),
            await client.post("/api/groups", json={"name": f"{HOSTILE} {conversation_id}"}),
            await client.post("/api/invitations", json={"note": HOSTILE}),
            await client.post("/api/personas", json={"name": HOSTILE, "instructions": HOSTILE}),
            await client.post("/api/documents", json={"title": HOSTILE, "text": HOSTILE}),
            await client.post(f"{page}/turns", json=turn),
            await client.post(
                "/api/files/text", content=HOSTILE.encode(), params={"name": HOSTILE}
            ),
        ]
        response_id = taken[7].json()["response"]["id"]
        await done(await client.post(f"/api/responses/{response_id}/cancel"))
        told = [
            await client.get(path)
            for path in (
                *(page, f"{page}/export", f"{page}/export?form=markdown", "/api/export"),
                *("/api/conversations", "/api/account", "/api/keys", "/api/groups"),
                *("/api/invitations", "/api/personas", "/api/documents", "/api/admin/keys"),
                *("/api/users", "/api/admin/audit", "/api/search?words=forged"),
            )
        ]
        odd = f"/{conversation_id}%0D%0A%7B%22event%22:%22forged%22%7D"
        await client.get(odd, headers={"user-agent": "<script>forged</script>"})
        await client.get("/health/live")
    log = each_server.output

    assert all(answer.is_success for answer in (*taken, *told))
    for answer in (*taken, *told):
        assert answer.headers["content-type"].partition(";")[0] in DATA
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "x-forged" not in answer.headers
    files = [one.headers.get("content-disposition", "") for one in told[1:4]]
    names = f"{conversation_id}.json", f"{conversation_id}.md", "keepwarm.json"
    assert files == [f'attachment; filename="{name}"' for name in names]
    assert "<script>" in taken[6].json()["text"], "it is kept as it is"
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert not [line for line in lines if line.get("event") == "forged"]
    assert [line for line in lines if line.get("path", "").endswith('{"event":"forged"}')]
    assert "<script>" not in log and "X-Forged" not in log


DATA = {"application/json", "text/markdown"}


@pytest.mark.row("dangerous extras")
async def test_no_address_in_a_file_a_message_or_a_request_is_ever_asked_for(house: Serving):
    async with listener() as (url, visits), somebody(house) as who:
        client = who.client
        link = Link(rect=(0, 0, 600, 800), url=url)
        writer = PdfWriter(clone_from=io.BytesIO(pdf(f"See {url} for more.")))
        writer.add_annotation(0, link)
        writer.write(paper := io.BytesIO())
        files = {"a.html": names(url), "b.pdf": paper.getvalue()}
        read = [
            await done(await client.post("/api/files/text", content=file, params={"name": name}))
            for name, file in files.items()
        ]
        ids = []
        for one in read:
            kept = {"title": url, "text": f"{one['text']} {url}"}
            ids.append(
                (await done(await client.post("/api/documents", json=kept)))["summary"]["id"]
            )
        persona = {"name": url, "instructions": f"Read {url}", "document_ids": ids}
        made = await done(await client.post("/api/personas", json=persona))
        begun = {"persona_id": made["summary"]["id"]}
        conversation = await done(await client.post("/api/conversations", json=begun))
        page = f"/api/conversations/{conversation['id']}"
        turn = {"client_message_id": "m", "parent_id": None, "text": f"![a]({url}) <img src={url}>"}
        await done(await client.post(f"{page}/turns", json=turn))
        await until(house, lambda: house.service.supervisor.live_turns == 0)
        parts = [
            {"type": "input_image", "image_url": url},
            {"type": "input_file", "file_url": url},
        ]
        refused = [
            await who.ask(
                "POST", "/v1/responses", json={"input": [{"role": "user", "content": [part]}]}
            )
            for part in parts
        ]
        quiet = len(visits)
        _, visitor = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        visitor.close()
        while not visits:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0)

    assert "See http" in read[1]["text"], "it was read"
    assert quiet == 0, "and who came then was seen"
    assert [answer.status_code for answer in refused] == [400, 400]


@contextlib.asynccontextmanager
async def listener() -> AsyncIterator[tuple[str, list[str]]]:
    """An address of this machine, and who came to it."""
    visits: list[str] = []

    def hear(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(str(writer.get_extra_info("peername")))
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/there", visits


def names(url: str) -> bytes:
    """A page of the web that names an address in every way that a browser would follow."""
    return f"""<!DOCTYPE html SYSTEM "{url}/dtd" [<!ENTITY x SYSTEM "{url}/entity">]>
    <html><head><base href="{url}/"><meta http-equiv="refresh" content="0;url={url}">
    <link rel="stylesheet" href="{url}/a.css"><script src="{url}/a.js"></script>
    <style>@import "{url}/b.css"; p {{ background: url({url}/c) }}</style></head>
    <body background="{url}/d"><p>Read me.</p><img src="{url}/e" srcset="{url}/f 2x">
    <iframe src="{url}/g"></iframe><object data="{url}/h"></object><embed src="{url}/i">
    <video src="{url}/j" poster="{url}/k"></video><svg><use href="{url}/l#m"/></svg>
    <a href="{url}/n" ping="{url}/o">there</a>&x;</body></html>""".encode()


@pytest.mark.row("secrets")
async def test_neither_what_was_said_nor_what_somebody_came_in_with_is_in_the_log(
    each_server: Server,
):
    said = "The quagga sleeps below the seventh bridge"
    guess = "a guess that nobody may read"
    async with person(each_server) as who, who.tab() as tab:
        client, conversation_id = who.client, await who.conversation()
        made = await done(await client.post("/api/keys", json={"name": "mine"}))
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, said)
        await tab.taste(accepted.response.id)
        key, login, form = made["key"], client.cookies["kw_session"], client.cookies["kw_csrf"]
        faults = [
            await client.post("/api/login", json={"email": who.email, "password": guess}),
            await client.post("/api/login", json={"email": guess, "password": guess, "x": said}),
            await client.post(f"/api/conversations/{conversation_id}/turns", json={"text": said}),
            await client.get("/api/search", params={"words": said, "cursor": "none"}),
            await ask(each_server.url, key, f"/v1/models?api_key={key}&x={guess}", "POST"),
            await ask(
                each_server.url,
                key,
                "/v1/responses",
                "POST",
                json={"input": said, "temperature": 9},
            ),
            await ask(each_server.url, f"{key}x", "/v1/models"),
        ]
        await tab.socket.send(json.dumps({"type": "turn.create", "text": said}))
        await tab.subscribe(conversation_id)
        await client.get("/health/live")
    log = each_server.output

    assert [answer.status_code for answer in faults] == [401, 400, 400, 400, 405, 400, 401]
    for secret in ("quagga", guess, PASSWORD, key, login, form):
        assert secret not in log
        assert not [answer for answer in faults if secret in answer.text]
    assert '"path": "/v1/responses"' in log, "it is told that somebody came"


# ---------------------------------------------------------------- what a cache or a size could tell


RULES = (
    "Keepers of the eleventh lamp answer in riddles, and name the tide before they name the wind. "
)


@pytest.mark.row("permission before lookup", "side channels")
async def test_11_what_one_may_not_read_is_no_hit_however_exactly_it_is_guessed(
    each_server: Server,
):
    """As a persona of one's own, as a document, as instructions of the dialect."""
    rules = RULES * 5
    async with (
        person(each_server, AccountRole.ADMIN) as boss,
        person(each_server) as ann,
        person(each_server) as eve,
        person(each_server) as mal,
    ):
        shared = {"visibility": "listed", "readers": [ann.email]}
        persona = {"name": "Keeper", "instructions": rules}
        listed = await done(await boss.client.post("/api/personas", json=persona | shared))
        theirs = {"persona_id": listed["summary"]["id"]}
        first, second = [await cached(ann, theirs) for _ in range(2)]
        refused = await eve.client.post("/api/conversations", json=theirs)
        own = await done(await eve.client.post("/api/personas", json=persona))
        guessed = await cached(eve, {"persona_id": own["summary"]["id"]})
        text = {"title": "Keeper", "text": rules}
        document = await done(await eve.client.post("/api/documents", json=text))
        as_document = await cached(eve, {"document_ids": [document["summary"]["id"]]})
        nothing = await cached(eve, {})
        key = (await done(await mal.client.post("/api/keys", json={"name": "k"})))["key"]
        asked = {"instructions": rules, "input": "Who are you?", "max_output_tokens": 1}
        told = await done(await ask(each_server.url, key, "/v1/responses", "POST", json=asked))

    assert second["persona"] > 50, "who may read it shares it"
    assert first["session"] == 0
    assert refused.status_code == 404
    assert (guessed["persona"], guessed["session"], guessed["document"]) == (0, 0, 0)
    assert (as_document["document"], as_document["session"]) == (0, 0)
    assert as_document["persona"] <= nothing["persona"], "the default persona alone"
    assert told["usage"]["input_tokens_details"]["cached_tokens"] == guessed["template"]


async def cached(who: Person, begun: dict[str, Any]) -> dict[str, int]:
    """Of the first turn of a new conversation, which tokens were there already."""
    made = await done(await who.client.post("/api/conversations", json=begun))
    async with who.tab() as tab:
        await tab.subscribe(made["id"])
        accepted = await tab.say(made["id"], "Who are you?")
        await tab.taste(accepted.response.id)
    found = await done(await who.client.get(f"/api/conversations/{made['id']}"))
    sources: dict[str, int] = found["messages"][-1]["response"]["receipt"]["cached_by_source"]
    return {"template": 0, "persona": 0, "document": 0, "session": 0} | sources


@pytest.mark.row("padding")
async def test_by_its_size_no_padded_delta_tells_how_long_its_text_is(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    said = "a\u00e9\u6f22\U0001f600" * 3
    monkeypatch.setitem(engine_of(house).says, JobClass.INTERACTIVE, said)
    monkeypatch.setattr(engine_of(house), "ends_after", None)
    async with somebody(house) as who:
        sizes = {
            padded: [
                await deltas(who, "/v1/responses", {"input": "Hi"}, padded=padded),
                await deltas(who, "/v1/chat/completions", CHAT, padded=padded),
            ]
            for padded in (True, False)
        }
        async with who.program() as program:
            for padded in (True, False):
                told = {"stream_options": {"include_obfuscation": padded}}
                await program.send(create(**told))
                sizes[padded].append(await deltas_until_the_end(program))

    for road in sizes[True]:
        assert len(road) > 3
        assert {size % PADDED_BYTES for size in road} == {0}
    for road in sizes[False]:
        assert len({size % PADDED_BYTES for size in road}) > 1, "as long as their texts"


CHAT = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}


def is_delta(event: dict[str, Any]) -> bool:
    if event.get("type") == "response.output_text.delta":
        return True
    return any(one["delta"].get("content") for one in event.get("choices", ()))


async def deltas(who: Somebody, path: str, asked: dict[str, Any], *, padded: bool) -> list[int]:
    """The sizes of the events with text, as they came."""
    body = {**asked, "stream": True, "stream_options": {"include_obfuscation": padded}}
    lines = (await who.ask("POST", path, json=body)).text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [len(one.encode()) for one in events if is_delta(json.loads(one))]


async def deltas_until_the_end(program: ClientConnection) -> list[int]:
    sizes, kind = [], ""
    while kind not in ("response.completed", "response.incomplete", "error"):
        event = await program.recv(decode=True)
        told = json.loads(event)
        kind = told["type"]
        if is_delta(told):
            sizes.append(len(event.encode()))
    return sizes


# ---------------------------------------------------------------- unsent


UNSENT = "The quokka of Zanzibar forges lanterns out of amber marmalade."


@pytest.mark.row("drafts")
async def test_17_what_is_typed_and_not_sent_is_in_no_row_of_any_table(house: Serving):
    engine = engine_of(house)
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        draft = Draft(conversation_id=conversation_id, parent_id=None, text=UNSENT)
        await tab.send(draft)
        await until(
            house,
            lambda: any(
                job.job_class is JobClass.DRAFT and str(job.owner_id) == who.user_id
                for job in engine.jobs
            ),
        )
        unsent = await found_in(house.database_url)
        await done(
            await who.client.post(
                f"/api/conversations/{conversation_id}/turns",
                json={"client_message_id": "m", "parent_id": None, "text": UNSENT},
            )
        )
        await until(house, lambda: house.service.supervisor.live_turns == 0)
        sent = await found_in(house.database_url)

    assert unsent == set()
    assert sent >= {"messages"}, "it would be found"


async def found_in(database_url: str) -> set[str]:
    """The tables with the text that nobody sent, or with its ids."""
    word, ids = "quokka", pack(ids_of("quokka"))

    def holds(value: object) -> bool:
        return word in str(value) or (isinstance(value, bytes) and ids in value)

    def look(connection: Connection) -> set[str]:
        return {
            table
            for table in inspect(connection).get_table_names()
            for row in connection.execute(text(f'SELECT * FROM "{table}"'))  # noqa: S608
            if any(map(holds, row))
        }

    async with contextlib.aclosing(Database(database_url)) as db, db.read() as session:
        return await (await session.connection()).run_sync(look)
