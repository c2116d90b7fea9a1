"""Personas and documents over HTTP: an administrator publishes, everybody picks, nobody overreaches."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.chat.library import DEFAULT_PERSONA
from app.db.types import AccountRole
from app.errors import Conflict
from tests.kit.peers import engine_of, somebody_at, until
from tests.kit.serving import Serving
from tests.kit.tab import PASSWORD, Person, browser

PIRATE = {
    "name": "Pirate",
    "instructions": "Talk like a pirate.",
    "examples": [{"user": "Hello", "assistant": "Ahoy"}],
}
CHARTER = {"title": "Charter", "text": "The ship has two masts."}
EVERYBODY = {"visibility": "everybody"}


@contextlib.asynccontextmanager
async def boss_at(server: Serving) -> AsyncIterator[Person]:
    email = "boss@example.org"
    with contextlib.suppress(Conflict):
        made = server.service.accounts.create_user(email, "Boss", PASSWORD, AccountRole.ADMIN)
        server.do(made)
    async with browser(server.site, email) as boss:
        yield boss


async def made(who: Person, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await who.client.post(path, json=body)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_what_an_administrator_publishes_is_picked_moved_on_from_and_archived(
    house: Serving,
):
    async with boss_at(house) as boss, somebody_at(house) as ann:
        document = await made(boss, "/api/documents", CHARTER | EVERYBODY)
        document_id = document["summary"]["id"]
        persona = await made(
            boss, "/api/personas", {**PIRATE, **EVERYBODY, "document_ids": [document_id]}
        )
        persona_id = persona["summary"]["id"]
        listed = (await ann.client.get("/api/personas")).json()
        read = (await ann.client.get(f"/api/personas/{persona_id}")).json()
        begun = await made(ann, "/api/conversations", {"persona_id": persona_id})
        newer = {"name": "Parrot", "instructions": "Talk like a parrot."}
        await made(boss, f"/api/personas/{persona_id}/versions", newer)
        await made(boss, f"/api/documents/{document_id}/versions", CHARTER | {"text": "It sank."})
        stays = (await ann.client.get(f"/api/conversations/{begun['id']}")).json()["conversation"]
        moved = await made(ann, f"/api/conversations/{begun['id']}/newest", {})
        archived = await boss.client.patch(f"/api/personas/{persona_id}", json={"archived": True})
        refused = await ann.client.post("/api/conversations", json={"persona_id": persona_id})
        picked = await made(ann, "/api/conversations", {"document_ids": [document_id]})

    assert read["summary"] | {"is_editable": True} == persona["summary"]
    assert read["summary"]["tokens"] > 0
    assert read["summary"] in [without_warmth(one) for one in listed]
    assert {key: read[key] for key in ("instructions", "examples", "document_ids")} == {
        "instructions": PIRATE["instructions"],
        "examples": PIRATE["examples"],
        "document_ids": [document_id],
    }
    assert (begun["persona_version"], begun["document_ids"]) == (1, [document_id])
    assert stays == begun
    assert (moved["persona_version"], moved["document_ids"]) == (2, [])
    assert archived.json()["summary"]["is_archived"]
    assert refused.status_code == 404
    assert (picked["persona_id"], picked["document_ids"]) == (DEFAULT_PERSONA.id, [document_id])


def without_warmth(one: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key != "is_warm"}


async def test_what_is_published_is_warmed_at_once_and_told_to_be(house: Serving):
    engine, warming = engine_of(house), house.service.warming
    async with boss_at(house) as boss, somebody_at(house) as ann:
        persona = await made(boss, "/api/personas", PIRATE | EVERYBODY)
        persona_id = persona["summary"]["id"]
        own = await made(ann, "/api/personas", PIRATE)
        warmed = f"{persona_id}@1"
        await until(house, lambda: warmed in [job.session_id for job in engine.jobs])
        await until(house, lambda: warmed in map(str, warming.versions))
        listed = {one["id"]: one for one in (await ann.client.get("/api/personas")).json()}

    assert listed[persona_id]["is_warm"]
    assert not listed[own["summary"]["id"]]["is_warm"]
    assert own["summary"]["tokens"] == listed[own["summary"]["id"]]["tokens"] > 0


async def stored_bytes(who: Person) -> int:
    usage = (await who.client.get("/api/account/usage")).json()
    return next(int(one["used"]) for one in usage["quotas"] if one["kind"] == "stored_bytes")


async def test_what_is_ones_own_is_deleted_once_nothing_reads_it(house: Serving):
    async with somebody_at(house) as ann, boss_at(house) as ben:
        before = await stored_bytes(ann)
        document = await made(ann, "/api/documents", CHARTER)
        document_path = f"/api/documents/{document['summary']['id']}"
        brings = PIRATE | {"document_ids": [document["summary"]["id"]]}
        persona = await made(ann, "/api/personas", brings)
        persona_path = f"/api/personas/{persona['summary']['id']}"
        await made(ann, f"{persona_path}/versions", PIRATE)
        under = await made(ann, "/api/conversations", {"persona_id": persona["summary"]["id"]})
        refused = [
            await ann.client.delete(persona_path),
            await ann.client.delete(document_path),
            await ben.client.delete(persona_path),
            await ann.client.delete(f"/api/personas/{DEFAULT_PERSONA.id}"),
        ]
        await ann.client.delete(f"/api/conversations/{under['id']}")
        still_brought = await ann.client.delete(document_path)
        gone = [await ann.client.delete(persona_path), await ann.client.delete(document_path)]
        after = [await ann.client.get(path) for path in (persona_path, document_path)]
        stored = await stored_bytes(ann)

    assert [one.status_code for one in refused] == [409, 409, 404, 404]
    assert [one.json()["code"] for one in (refused[0], still_brought)] == ["in_use"] * 2
    assert [one.status_code for one in gone] == [204, 204]
    assert [one.status_code for one in after] == [404, 404]
    assert stored == before


async def test_a_document_that_a_conversation_picked_is_in_use(house: Serving):
    async with somebody_at(house) as ann:
        document = await made(ann, "/api/documents", CHARTER)
        document_id = document["summary"]["id"]
        await made(ann, "/api/conversations", {"document_ids": [document_id]})
        refused = await ann.client.delete(f"/api/documents/{document_id}")

    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")


@pytest.mark.row("CVE-2026-45671")
async def test_19_who_is_listed_reads_and_changes_publishes_or_deletes_nothing(house: Serving):
    async with boss_at(house) as boss, somebody_at(house) as ann:
        listed = {"visibility": "listed", "readers": [ann.email]}
        document = await made(boss, "/api/documents", CHARTER | listed)
        path = f"/api/documents/{document['summary']['id']}"
        refused = [
            await ann.client.post(f"{path}/versions", json=CHARTER | {"text": "It sank."}),
            await ann.client.get(f"{path}/versions"),
            await ann.client.patch(path, json=EVERYBODY),
            await ann.client.patch(path, json={"archived": True}),
            await ann.client.delete(path),
        ]
        read = await ann.client.get(path)
        after = await boss.client.get(path)

    assert {answer.status_code for answer in refused} == {404}
    assert read.json()["text"] == CHARTER["text"]
    assert after.json() == document


async def test_one_keeps_personas_and_documents_of_ones_own(house: Serving):
    async with somebody_at(house) as ann, boss_at(house) as boss:
        document = await made(ann, "/api/documents", CHARTER)
        own = await made(
            ann, "/api/personas", PIRATE | {"document_ids": [document["summary"]["id"]]}
        )
        persona_id = own["summary"]["id"]
        begun = await made(ann, "/api/conversations", {"persona_id": persona_id})
        others = await boss.client.get(f"/api/personas/{persona_id}")
        never = await boss.client.get("/api/personas/persona_0")

    assert own["summary"]["visibility"] == "owner"
    assert begun["persona_id"] == persona_id
    assert [others.status_code, never.status_code] == [404, 404]
    assert {**others.json(), "request_id": ""} == {**never.json(), "request_id": ""}


@pytest.mark.parametrize(
    ("request_line", "body", "refused"),
    [
        ("POST /api/personas", {**PIRATE, **EVERYBODY}, (403, "visibility")),
        ("POST /api/personas", PIRATE | {"instructions": ""}, (400, "instructions")),
        ("POST /api/personas", PIRATE | {"examples": [{"user": "Hi"}]}, (400, "examples[0]")),
        ("POST /api/personas", PIRATE | {"document_ids": ["document_0"]}, (404, "document_id")),
        ("POST /api/personas", PIRATE | {"document_ids": ["d"] * 33}, (400, "document_ids")),
        ("POST /api/personas", PIRATE | {"more": 1}, (400, None)),
        ("POST /api/documents", CHARTER | {"title": "t" * 201}, (400, "title")),
        ("POST /api/documents", CHARTER | {"visibility": "nobody"}, (400, "visibility")),
        (f"POST /api/personas/{DEFAULT_PERSONA.id}/versions", PIRATE, (404, "persona_id")),
        (f"PATCH /api/personas/{DEFAULT_PERSONA.id}", {"archived": True}, (404, "persona_id")),
        ("PATCH /api/documents/document_0", {}, (400, None)),
        ("PATCH /api/documents/persona_default", {"archived": True}, (404, "document_id")),
        ("POST /api/conversations", {"document_ids": ["document_0"]}, (404, "document_id")),
        ("POST /api/conversations", {"persona_id": "document_0"}, (404, "persona_id")),
        ("POST /api/conversations/conv_0/newest", {}, (404, "conversation_id")),
    ],
)
async def test_what_is_refused_names_the_field_and_leaves_nothing(
    house: Serving, request_line: str, body: Any, refused: tuple[int, str | None]
):
    async with somebody_at(house) as ann:
        before = (await ann.client.get("/api/personas")).json()
        answer = await ann.client.request(*request_line.split(), json=body)
        after = (await ann.client.get("/api/personas")).json()

    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["field"]) == refused, answer.text
    assert before == after


@pytest.mark.parametrize("path", ["/api/documents", "/api/documents/{}/versions"])
async def test_a_text_that_no_conversation_has_room_for_is_refused(house: Serving, path: str):
    async with somebody_at(house) as ann:
        document = await made(ann, "/api/documents", CHARTER)
        place = path.format(document["summary"]["id"])
        answer = await ann.client.post(place, json=CHARTER | {"text": "x" * 100_000})

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "context_length_exceeded")
    assert problem["field"] == "text"
    assert "room for 100000" in problem["detail"]


async def test_a_change_needs_the_pages_token(house: Serving):
    async with boss_at(house) as boss:
        del boss.client.headers["x-csrf-token"]
        answer = await boss.client.post("/api/personas", json=PIRATE | EVERYBODY)

    assert (answer.status_code, answer.json()["code"]) == (403, "csrf")
