"""Search finds all that one said and was told, and nothing of others (laws 11 and 19)."""

import random
import re
import sys
import unicodedata

import pytest
from sqlalchemy import delete, func, select, text, update

from app.chat.branches import Branches
from app.chat.search import MARK_CHARACTERS, Search
from app.chat.stored import StoredLedger
from app.chat.words import LONGEST_TEXT, excerpt, phrases, words
from app.db.base import Database
from app.db.models import Message, MessageText, Response, User
from app.errors import InvalidRequest
from app.events import ResponseStatus
from app.ids import MessageId
from app.people.accounts import Principal
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import EchoEngine
from tests.kit.serving import Serving
from tests.kit.staff import somebody


async def found(search: Search, who: Principal, query: str) -> set[MessageId]:
    return {one.message_id for one in (await search.find(who.user_id, query)).items}


async def said(domain: Domain, who: Principal, *texts: str) -> list[MessageId]:
    """The messages of one conversation, without their answers."""
    conversation = await domain.conversations.create(who.user_id)
    for one in texts:
        await domain.say(who, conversation.id, one)
    messages = await domain.conversations.messages(who.user_id, conversation.id)
    return [one.id for one in messages if one.role == "user"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("lighthouse", {0}),
        ("LIGHT", {0, 4}),
        ("light keeper", {0}),
        ("keeper light", {0}),
        ("light zoo", set()),
        ("zoe", {1}),
        ("Zoë's café", {1}),
        ("\uff3a\uff2f\uff25", {1}),
        ("世界", {2}),
        ("界世", set()),
        ("東京", {2}),
        ("ПРИВЕТ", {3}),
        ("strasse", {3}),
        ("don't", {4}),
        ("don t", {4}),
        ("NOT light", {4}),
        ('"', None),
        ("light\0house", set()),
        ("' OR 1=1 --", {4}),
        ("l", set()),
        ("a", {0, 4}),
    ],
)
async def test_a_message_is_found_by_the_words_it_has(
    db: Database, query: str, expected: set[int] | None
):
    async with open_domain(db, EchoEngine()) as domain:
        ann, search = await new_person(db), Search(db)
        ids = await said(
            domain,
            ann,
            "The keeper of a Lighthouse",
            "Zoë's cafe\u0301",
            "今日は世界、東京",
            "привет, Straße",
            "don't or 1 1: not a light",
        )
        if expected is None:
            with pytest.raises(InvalidRequest, match="no word"):
                await search.find(ann.user_id, query)
            return
        hits = await found(search, ann, query) & {*ids}  # answers are any letters

    assert hits == {ids[place] for place in expected}


async def test_any_text_can_be_looked_for_and_any_can_be_found(db: Database):
    """Quotes, operators, half characters of every kind: neither database sees any syntax in them."""
    dice = random.Random(5)  # noqa: S311
    letters = [chr(dice.randrange(0xD800)) for _ in range(400)] + [*"\"'*^:()&|!<->\\%_{}-+\n\t\0"]
    texts = ["".join(dice.choices(letters, k=30)) for _ in range(40)]
    async with open_domain(db, EchoEngine()) as domain:
        ann, search = await new_person(db), Search(db)
        ids = await said(domain, ann, *texts)
        hits = [await found(search, ann, one) if phrases(one) else None for one in texts]

    assert all(own in hit for own, hit in zip(ids, hits, strict=True) if hit is not None)


async def test_a_reply_is_found_when_it_has_ended_as_it_ended(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, search = await new_person(db), Search(db)
        conversation = await domain.conversations.create(ann.user_id)
        end = await domain.say(ann, conversation.id, "hello")
        (hit,) = (await search.find(ann.user_id, end.text)).items

    assert hit.message_id == end.response.message_id
    assert (hit.conversation_id, hit.title, hit.role) == (conversation.id, "hello", "assistant")
    assert [(one.text, one.is_match) for one in hit.excerpt] == [(end.text, True)]


async def test_19_nobody_finds_what_another_wrote(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben, search = await new_person(db), await new_person(db), Search(db)
        (own,) = await said(domain, ann, "our lighthouse")
        (others,) = await said(domain, ben, "their lighthouse")

        assert await found(search, ann, "lighthouse") == {own}
        assert await found(search, ben, "lighthouse") == {others}
        assert await found(search, ann, "their") == set()
        assert await found(search, ann, f"{ben.user_id} lighthouse") == set()


@pytest.mark.row("side channels")
async def test_11_no_search_comes_past_a_word_that_another_wrote(db: Database):
    """What it walks through has the beginning that it looks for: of words of the searcher's own."""
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        for who in (ann, ben):
            await said(domain, who, "our lighthouse")
        async with db.read() as session:
            rows = await session.execute(text("SELECT user_id, words FROM message_texts"))
    indexed: dict[str, set[str]] = {ann.user_id: set(), ben.user_id: set()}
    for user_id, stored in rows:
        indexed[user_id] |= set(re.findall("[a-z0-9]+(?=lighthouse)", str(stored)))

    (anns,), (bens,) = indexed.values()
    assert len(anns) == len(bens) == MARK_CHARACTERS
    assert anns != bens


async def test_pages_give_each_message_once_the_newest_first(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, search = await new_person(db), Search(db)
        ids = await said(domain, ann, *(f"number {place}" for place in range(7)))
        pages, cursor = [], None
        while True:
            page = await search.find(ann.user_id, "number", cursor=cursor, limit=3)
            pages.append([one.message_id for one in page.items])
            cursor = page.next_cursor
            if cursor is None:
                break
        for foreign in ("", "7", "msg_'", "conv_1", "msg_\0"):
            with pytest.raises(InvalidRequest, match="cursor"):
                await search.find(ann.user_id, "number", cursor=foreign)

    assert [len(one) for one in pages] == [3, 3, 1]
    assert [one for page in pages for one in page] == ids[::-1]


async def test_what_is_deleted_is_gone_from_the_index(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben, search = await new_person(db), await new_person(db), Search(db)
        conversation = await domain.conversations.create(ann.user_id)
        await domain.say(ann, conversation.id, "a lighthouse")
        await said(domain, ben, "another lighthouse")
        await domain.supervisor.delete_conversation(ann, conversation.id)
        async with db.begin() as session:
            await session.execute(delete(User).where(User.id == ben.user_id))
        async with db.begin() as session:
            left = await session.scalar(select(func.count()).select_from(MessageText))
            if db.is_sqlite:
                check = (
                    "INSERT INTO message_words(message_words, rank) VALUES ('integrity-check', 1)"
                )
                await session.execute(text(check))
                rows = await session.scalar(text("SELECT count(*) FROM message_words_docsize"))
                assert rows == 0
        assert await found(search, ann, "lighthouse") == set()

    assert left == 0


async def test_a_copy_of_a_branch_is_found_as_the_branch_is(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, search = await new_person(db), Search(db)
        (asked,) = await said(domain, ann, "a lighthouse")
        (hit,) = (await search.find(ann.user_id, "lighthouse")).items
        copy = await Branches(db, domain.hub, domain.usage).fork(
            ann.user_id, hit.conversation_id, asked
        )
        hits = (await search.find(ann.user_id, "lighthouse")).items

    assert [one.conversation_id for one in hits] == [copy.id, hit.conversation_id]


async def test_what_was_never_indexed_is_caught_up_with_once(db: Database):
    """Of before the index, of a server that was killed; not what is being written now."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, search = await new_person(db), Search(db)
        ids = await said(domain, ann, "an old lighthouse", "a new one")
        async with db.begin() as session:
            await session.execute(delete(MessageText))
            open_reply = select(Message.id).where(Message.parent_id == ids[1]).scalar_subquery()
            await session.execute(
                update(Response)
                .where(Response.message_id == open_reply)
                .values(status=ResponseStatus.IN_PROGRESS)
            )
        caught_up = await search.catch_up()
        hits = await found(search, ann, "lighthouse")
        swept = await StoredLedger(db, domain.usage).sweep()
        later = await search.catch_up()

        assert (caught_up, swept, later) == (3, 1, 1)
        assert hits == {ids[0]}
        assert await search.catch_up() == 0


async def test_the_dialects_conversations_are_not_searched(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, search = await new_person(db), Search(db)
        await domain.ended(ann, await domain.respond(ann, "a lighthouse"))
        hits = await found(search, ann, "lighthouse")
        caught_up = await search.catch_up()

    assert (hits, caught_up) == (set(), 0)


async def test_the_longest_messages_are_stored_whatever_they_say(db: Database):
    """A `tsvector` is refused beyond a megabyte, and the turn with it."""
    rare = [chr(one) for one in range(0x20000, 0x2A000)]
    letters = [chr(one) for one in range(0x10400, 0x10450)]
    dice = random.Random(7)  # noqa: S311
    async with open_domain(db, EchoEngine()) as domain:
        ann, search = await new_person(db), Search(db)
        texts = (
            "".join(rare) * 8,
            " ".join("".join(dice.choices(letters, k=2)) for _ in range(100_000)),
            "x" * 300_000,
            "\ufdfa" * 250_000,
        )
        conversation = await domain.conversations.create(ann.user_id)
        for one in texts:
            accepted = await domain.say(ann, conversation.id, "grow")
            async with db.begin() as session:
                reply_id = accepted.response.message_id
                await session.execute(
                    update(Message).where(Message.id == reply_id).values(text=one)
                )
                await session.execute(delete(MessageText))
            await search.catch_up()
            assert reply_id in await found(search, ann, one[:2])


def test_words_are_cut_the_same_whatever_their_form():
    for one in ("Ångström", "한국어", "がぎぐ", "ﬁne", "Ǆ"):
        forms = {words(unicodedata.normalize(form, one)) for form in ("NFC", "NFD", "NFKC", "NFKD")}
        assert len(forms) == 1, one
    assert words("snake_case, e-mail: a@b.org") == ("snake", "case", "e", "mail", "a", "b", "org")
    assert len(words("a " * sys.maxunicode)) == LONGEST_TEXT / 2
    assert phrases(" -- don't 世界 ") == (("don", "t"), ("世", "界"))


def test_an_excerpt_shows_the_first_match_where_it_stands():
    long = "before " * 50 + "the Lighthouse\n\nstands by the SEA " + "after " * 50
    pieces = excerpt(long, phrases("light sea"))

    shown = "".join(one.text for one in pieces)
    assert [one.text for one in pieces if one.is_match] == ["Lighthouse", "SEA"]
    assert "the Lighthouse stands by the SEA after" in shown
    assert shown[0] == shown[-1] == "…"
    assert len(shown) < 260
    assert excerpt("light", phrases("light")) == excerpt(" light"[1:], phrases("LIGHT"))


async def test_the_page_searches_over_http(house: Serving):
    async with somebody(house) as ann:
        conversation_id = await ann.conversation()
        turn = {
            "client_message_id": "m1",
            "parent_id": None,
            "text": "Where is the lighthouse?",
        }
        sent = await ann.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
        # Its stream ends when the turn is stored.
        await ann.client.get(f"/api/responses/{sent.json()['response']['id']}/events")
        page = await ann.client.get("/api/search", params={"words": "light"})
        refused = [
            await ann.client.get("/api/search", params=params)  # type: ignore[arg-type]
            for params in (
                {},
                {"words": "?!"},
                {"words": "x" * 201},
                {"words": "x", "limit": 0},
            )
        ]

    (hit,) = page.json()["items"]
    assert hit["message_id"] == sent.json()["message"]["id"]
    assert hit["conversation_id"] == conversation_id
    assert [one["text"] for one in hit["excerpt"] if one["is_match"]] == ["lighthouse"]
    assert [one.status_code for one in refused] == [400] * 4
