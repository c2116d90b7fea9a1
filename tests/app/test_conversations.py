"""Conversations as their owner sees them, and as nobody else does (law 19)."""

import asyncio
import base64
import itertools
from datetime import datetime, timedelta

import pytest
from sqlalchemy import update

from app.chat import entry
from app.chat.conversations import Changes, Shelf
from app.chat.library import DEFAULT_PERSONA
from app.chat.liveness import session_of
from app.db.base import Database
from app.db.models import Conversation
from app.db.types import utc_now
from app.errors import InvalidRequest, NotFound
from app.frames import ConversationChanged, ConversationDeleted
from app.ids import ConversationId, ItemId, PersonaId
from engine.api import Hold, RetentionClass
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine


async def test_a_conversation_begins_empty_under_the_default_persona(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        made = await domain.conversations.create(ann.user_id)
        found = await domain.conversations.get(ann.user_id, made.id)

        assert made == found
        assert (found.title, found.persona_id, found.leaf_id) == ("", DEFAULT_PERSONA.id, None)
        with pytest.raises(NotFound, match="no such persona"):
            await domain.conversations.create(ann.user_id, PersonaId(ItemId("persona_none")))


async def test_the_first_message_gives_the_title(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        titles = {}
        for text in ("Short  one\n", "word " * 40, "x" * 100):
            conversation = await domain.conversations.create(ann.user_id)
            await domain.say(ann, conversation.id, text)
            await domain.say(ann, conversation.id, "and another")
            found = await domain.conversations.get(ann.user_id, conversation.id)
            titles[text] = found.title

    assert list(titles.values()) == ["Short one", "word" + " word" * 10 + "…", "x" * 59 + "…"]


async def test_a_message_is_newer_than_what_it_follows_whatever_the_clock_says(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    """Set forth for a while and back, between turns and within them: pages stay in order."""
    ahead = itertools.cycle([0, 400, 0, -400, 10])

    def now() -> datetime:
        return utc_now() + timedelta(days=next(ahead))

    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        monkeypatch.setattr(entry, "utc_now", now)
        conversation = await domain.conversations.create(ann.user_id)
        for number in range(6):
            await domain.say(ann, conversation.id, f"message {number}")
        found = await domain.conversations.messages(ann.user_id, conversation.id)
        page = await domain.conversations.page(ann.user_id, conversation.id, limit=5)

    assert [one.parent_id for one in found] == [None, *(one.id for one in found[:-1])]
    assert [one.id for one in page.items] == [one.id for one in found[:-6:-1]]


async def test_the_messages_are_the_whole_tree_with_responses(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        end = await domain.say(ann, conversation.id, "hello", client_message_id="c1")
        user, assistant = await domain.conversations.messages(ann.user_id, conversation.id)
        found = await domain.conversations.get(ann.user_id, conversation.id)

    assert (user.role, user.text, user.client_message_id) == ("user", "hello", "c1")
    assert (assistant.role, assistant.text, assistant.parent_id) == (
        "assistant",
        end.text,
        user.id,
    )
    assert user.response is None
    assert assistant.response == end.response
    assert found.leaf_id == assistant.id


async def test_a_warm_ups_message_shows_no_response(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        warm = await domain.respond(ann, "context", generate=False)
        await domain.ended(ann, warm)
        assert warm.conversation_id is not None
        (message,) = await domain.conversations.messages(ann.user_id, warm.conversation_id)

    assert message.response is None


async def test_pages_list_each_conversation_once_the_last_changed_first(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        made = [await domain.conversations.create(ann.user_id) for _ in range(7)]
        await domain.conversations.create(ben.user_id)
        async with db.begin() as session:  # three of them in the very same moment
            await session.execute(
                update(Conversation)
                .where(Conversation.id.in_([one.id for one in made[2:5]]))
                .values(updated_at=utc_now())
            )
        pages, cursor = [], None
        while True:
            page = await domain.conversations.list(ann.user_id, cursor=cursor, limit=3)
            pages.append(page.items)
            cursor = page.next_cursor
            if cursor is None:
                break

    listed = [one for page in pages for one in page]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert {one.id for one in listed} == {one.id for one in made}
    assert listed == sorted(listed, key=lambda one: (one.updated_at, one.id), reverse=True)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "%%%",
        "bm90IG91cnM=",
        "MjAyNiB4",
        base64.b64encode(b"2026-01-01T00:00:00 conv_1").decode(),
        base64.b64encode(b"0001-01-01T00:00:00+14:00 conv_1").decode(),
        base64.b64encode(b"2026-01-01T00:00:00+00:00 conv_\0").decode(),
    ],
    ids=["empty", "no base64", "words", "a number", "no zone", "before all time", "a NUL"],
)
async def test_a_foreign_cursor_is_refused(db: Database, cursor: str):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        with pytest.raises(InvalidRequest, match="cursor"):
            await domain.conversations.list(ann.user_id, cursor=cursor)


async def test_the_dialects_conversations_are_not_listed(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        await domain.ended(ann, await domain.respond(ann, "hello"))
        page = await domain.conversations.list(ann.user_id)

    assert page.items == ()


async def test_renaming_is_told_to_the_watchers(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        with domain.hub.watch(ann.user_id) as feed:
            await domain.conversations.change(
                ann.user_id, conversation.id, Changes(title=" A  new\nname ")
            )
            await domain.conversations.delete(ann.user_id, conversation.id)
            notices = [await anext(aiter(feed)), await anext(aiter(feed))]

    changed, deleted = notices
    assert isinstance(changed, ConversationChanged)
    assert changed.conversation.title == "A new name"
    assert deleted == ConversationDeleted(conversation_id=conversation.id)


async def test_a_list_shows_what_is_current_and_shelves_show_the_rest(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        plain, pinned, archived = [
            (await domain.conversations.create(ann.user_id)).id for _ in range(3)
        ]
        await domain.conversations.change(ann.user_id, pinned, Changes(pinned=True))
        changed = await domain.conversations.change(ann.user_id, archived, Changes(archived=True))
        shown = {}
        for shelf in Shelf:
            page = await domain.conversations.list(ann.user_id, shelf=shelf)
            shown[shelf] = {one.id for one in page.items}
        back = await domain.conversations.change(ann.user_id, archived, Changes(archived=False))

    assert shown == {
        Shelf.CURRENT: {plain, pinned},
        Shelf.PINNED: {pinned},
        Shelf.ARCHIVED: {archived},
    }
    assert changed.archived and not back.archived


async def test_what_is_kept_warm_is_wished_for_until_its_owner_says_otherwise(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        subject = session_of(ann.user_id, conversation.id)
        for kept in (True, False):
            changes = Changes(kept_warm=kept)
            await domain.supervisor.change_conversation(ann, conversation.id, changes)
            await engine.told(2 - kept)
        await domain.supervisor.change_conversation(ann, conversation.id, Changes(kept_warm=True))
        await engine.told(3)
    again = EchoEngine()
    async with open_domain(db, again):
        await again.told(1)

    wished = [wish.retention for _, wish in engine.leases if isinstance(wish, Hold)]
    assert wished == [RetentionClass.KEPT, RetentionClass.RECENT, RetentionClass.KEPT]
    assert again.leases == [(subject, Hold(retention=RetentionClass.KEPT))]


@pytest.mark.parametrize("who", ["conversation", "user"])
async def test_what_is_forgotten_is_not_kept_warm_any_more(db: Database, who: str):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        subject, liveness = session_of(ann.user_id, conversation.id), domain.supervisor.liveness
        liveness.keep_warm(subject, kept=True)
        await engine.told(1)
        if who == "user":
            liveness.forget_user(ann.user_id)
        else:
            liveness.forget(subject)
        liveness.keep_warm(subject, kept=True)
        async with asyncio.timeout(30):
            await engine.told(2)


@pytest.mark.parametrize("title", ["", " \n ", "x" * 201])
async def test_a_title_has_words_and_a_limit(db: Database, title: str):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        with pytest.raises(InvalidRequest, match="title"):
            await domain.conversations.change(ann.user_id, conversation.id, Changes(title=title))


async def test_19_anothers_conversation_and_an_unknown_one_look_the_same(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        theirs = await domain.conversations.create(ann.user_id)
        conversations, refusals = domain.conversations, set()
        for conversation_id in (theirs.id, ConversationId("conv_none")):
            for attempt in (
                conversations.get(ben.user_id, conversation_id),
                conversations.change(ben.user_id, conversation_id, Changes(title="mine")),
                conversations.messages(ben.user_id, conversation_id),
                conversations.delete(ben.user_id, conversation_id),
                domain.send(ben, conversation_id, "hello"),
                domain.supervisor.delete_conversation(ben, conversation_id),
            ):
                with pytest.raises(NotFound) as refused:
                    await attempt
                refusals.add((refused.value.message, refused.value.code, refused.value.field))

        assert len(refusals) == 1
        assert await conversations.get(ann.user_id, theirs.id) == theirs
