"""What the library said before: for those who may edit it, and for nobody else (law 19)."""

from typing import Any

from app.chat.library import DEFAULT_PERSONA
from tests.kit.peers import until
from tests.kit.serving import Serving
from tests.kit.staff import Somebody, done, somebody
from tests.kit.staff import boss as boss_of


async def test_19_old_versions_are_told_to_those_who_may_edit(house: Serving):
    async with boss_of(house) as boss, somebody(house) as ann:
        first = {"title": "Charter", "text": "Two masts."}
        made = await boss.client.post("/api/documents", json=first | {"visibility": "everybody"})
        item_id = made.json()["summary"]["id"]
        page = f"/api/documents/{item_id}/versions"
        await boss.client.post(page, json=first | {"text": "It sank."})
        warm = house.service.warming.warm
        await until(house, lambda: f"{item_id}@2" in {str(r) for refs in warm for r in refs})
        listed: list[dict[str, Any]] = (await boss.client.get(page)).json()
        old = await boss.client.get(f"{page}/1")
        again = await boss.client.post(page, json=first | {"text": old.json()["text"]})
        refused = [
            await ann.client.get(page),
            await ann.client.get(f"{page}/1"),
            await boss.client.get(f"{page}/9"),
            await boss.client.get(f"/api/personas/{item_id}/versions"),
            await boss.client.get("/api/documents/document_0/versions"),
            await boss.client.get(f"{page}/99999999999999999999"),
        ]

    assert [one["version"]["number"] for one in listed] == [2, 1]
    assert listed[0]["is_warm"]
    assert listed[0]["version"]["tokens"] > 0
    assert old.json()["text"] == "Two masts."
    assert again.json()["summary"]["version"] == 3
    assert [one.status_code for one in refused] == [404] * 5 + [400]


async def test_a_version_tells_who_wrote_it_as_long_as_there_is_that_account(house: Serving):
    says = {"name": "Pirate", "instructions": "Talk like a pirate."}
    async with boss_of(house) as boss, boss_of(house) as mate, somebody(house) as ann:
        published = await made(boss, says | {"visibility": "everybody"})
        await done(await mate.client.post(f"{published}/versions", json=says))
        own = await made(ann, says)
        await done(await ann.client.post(f"{own}/versions", json=says))
        both = await authors(boss, published)
        hers = await authors(ann, own)
        ours = await authors(boss, f"/api/personas/{DEFAULT_PERSONA.id}")
        await done(await boss.client.delete(f"/api/users/{mate.user_id}"))
        left = await authors(boss, published)

    assert both == [mate.email, boss.email]
    assert hers == [ann.email, ann.email]
    assert ours[-1] is None
    assert left == [None, boss.email]


async def made(who: Somebody, says: dict[str, str]) -> str:
    """Where the new persona is."""
    found = await done(await who.client.post("/api/personas", json=says))
    return f"/api/personas/{found['summary']['id']}"


async def authors(who: Somebody, path: str) -> list[str | None]:
    listed = await done(await who.client.get(f"{path}/versions"))
    return [one["version"]["author_email"] for one in listed]
