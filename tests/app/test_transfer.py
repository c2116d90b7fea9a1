"""What goes out comes in again the same; what others wrote comes in safely, or not at all."""

import contextlib
import io
import json
import zipfile
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from app.chat.apart import Apart
from app.chat.archive import Archive, SavedConversation, SavedMessage
from app.chat.conversations import Changes
from app.chat.entry import TurnRequest
from app.chat.export import Export, markdown
from app.chat.foreign import LARGEST_UNPACKED, work
from app.chat.imports import Imports
from app.chat.ledger import Act
from app.chat.library import DEFAULT_PERSONA, Access, Text
from app.chat.search import Search
from app.db.base import Database
from app.db.models import Conversation, Message, Response
from app.db.types import AccountRole, ItemKind, QuotaKind, Visibility, utc_now
from app.errors import InvalidRequest, NotFound
from app.events import ResponseStatus
from app.ids import ConversationId, PersonaId
from app.people.accounts import Principal
from app.routes.transfer import LARGEST_IMPORT
from engine.api import Limits, Role
from tests.kit.domain import GREEDY, Domain, new_person, open_domain, said
from tests.kit.echo import EchoEngine
from tests.kit.serving import Serving
from tests.kit.staff import done, somebody


async def grown(domain: Domain, who: Principal) -> ConversationId:
    """A conversation with a fork at its root, one below it, and an answer that was stopped."""
    conversation = await domain.conversations.create(who.user_id)
    first = await domain.say(
        who, conversation.id, "Where is the lighthouse?", client_message_id="1"
    )
    await domain.say(who, conversation.id, "And the sea?", max_tokens=3)
    for parent_id in (first.response.message_id, None):
        request = TurnRequest(
            conversation_id=conversation.id,
            message_id=parent_id,
            messages=said("Once more\n"),
            sampling=GREEDY,
            limits=Limits(),
        )
        accepted = await domain.supervisor.create(who, request)
        await domain.ended(who, accepted.response)
    return conversation.id


def shape(saved: SavedConversation) -> dict[str, Any]:
    """All of it but names: ids by where they stand, and the prompt's ids, which do not come back."""
    place: dict[str, int] = {one.id: number for number, one in enumerate(saved.messages)}
    place |= {one.response.id: place[one.id] for one in saved.messages if one.response}
    found: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(
            saved, id=ConversationId("conv_"), messages=[_bare(one) for one in saved.messages]
        )
    )
    renamed: dict[str, Any] = json.loads(_named_by_place(json.dumps(found), place))
    return renamed


def _bare(one: SavedMessage) -> SavedMessage:
    return msgspec.structs.replace(
        one,
        token_ids=b"",
        head_token_ids=None,
        seam=None,
        model_fingerprint=None,
        template_fingerprint=None,
    )


def _named_by_place(text: str, place: dict[str, int]) -> str:
    for one, number in place.items():
        text = text.replace(one, f"#{number}")
    return text


async def test_16_an_exported_conversation_comes_in_as_an_equal_tree(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        export, imports = Export(db), Imports(db, domain.hub, Apart(), domain.usage)
        made = await grown(domain, ann)
        await domain.conversations.change(ann.user_id, made, Changes(title="T", pinned=True))
        before = await export.read(ann.user_id, made)
        file = b"".join([part async for part in export.all(ann.user_id)])
        again = await imports.take(ann.user_id, file)
        others = await imports.take(ben.user_id, file)
        after = await export.read(ann.user_id, again.conversation_ids[0])
        bens = await export.read(ben.user_id, others.conversation_ids[0])
        listed = (await domain.conversations.list(ben.user_id)).items

        assert len(before.messages) == 8
        assert shape(before) == shape(after) == shape(bens)
        assert not {one.id for one in before.messages} & {one.id for one in after.messages}
        assert [one.id for one in listed] == list(others.conversation_ids)
        assert (again.messages, again.under_default_persona) == (8, 0)
        with pytest.raises(NotFound):
            await export.read(ben.user_id, again.conversation_ids[0])


def columns() -> set[str]:
    return {column.key for column in Conversation.__table__.columns}


def test_all_that_is_kept_of_a_conversation_is_in_the_file():
    """A new column is exported, or named here with the reason why it is not."""
    of_the_server = {"user_id", "origin", "stored_bytes", "labels", "provisional_title"}
    readings = {"persona_id", "persona_version", "documents"}

    assert columns() - of_the_server - readings == set(SavedConversation.__struct_fields__) - {
        "reads",
        "messages",
    }


async def test_what_was_kept_warm_and_what_it_goes_on_from_come_along(house: Serving):
    async with somebody(house) as ann, somebody(house) as ben, somebody(house) as cid:
        source = await ann.conversation()
        async with ann.tab() as tab:
            await tab.subscribe(source)
            said = await tab.say(source, "Ships?")
            await tab.story(said.response.id)
        leaf = {"client_message_id": "s1", "leaf_id": said.response.message_id}
        summary = f"/api/conversations/{source}/summary"
        sequel = (await done(await ann.client.post(summary, json=leaf)))["id"]
        path = f"/api/conversations/{sequel}"
        await done(await ann.client.patch(path, json={"kept_warm": True}))
        one = (await ann.client.get(f"{path}/export")).content
        file = (await ann.client.get("/api/export")).content
        nothing = house.service.quotas.set_for_user(cid.user_id, QuotaKind.KEPT_WARM, 0)
        house.do(nothing)
        came = [
            await done(await who.client.post("/api/import", content=file)) for who in (ben, cid)
        ]
        alone = [
            await done(await who.client.post("/api/import", content=one)) for who in (ann, ben)
        ]
        listed = {
            view["id"]: view
            for who in (ann, ben, cid)
            for view in (await done(await who.client.get("/api/conversations")))["items"]
        }
        wished = house.service.supervisor.liveness._kept
        kept = {str(subject.subject_id) for subject in wished}

    bens, cids = (made["conversation_ids"] for made in came)
    (anns,), (bens_one,) = (made["conversation_ids"] for made in alone)
    assert [listed[one]["continues_id"] for one in bens] == [None, bens[0]]
    assert [listed[one]["kept_warm"] for one in bens] == [False, True]
    assert [listed[one]["kept_warm"] for one in cids] == [False, False]
    assert [made["not_kept_warm"] for made in came] == [0, 1]
    assert listed[anns]["continues_id"] == source
    assert listed[bens_one]["continues_id"] is None, "another's is nobody else's to name"
    assert kept >= {bens[1], anns, bens_one} and not kept & set(cids)


async def test_an_imported_conversation_goes_on_and_is_found(db: Database):
    """Its prompt is what its text says, rendered once; a stopped answer is closed."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, ben = await new_person(db), await new_person(db)
        export, imports = Export(db), Imports(db, domain.hub, Apart(), domain.usage)
        file = await export.one(ann.user_id, await grown(domain, ann))
        (made,) = (await imports.take(ben.user_id, file)).conversation_ids
        found = (await Search(db).find(ben.user_id, "lighthouse")).items
        saved = await export.read(ben.user_id, made)
        await domain.say(ben, made, "go on")
        rendered = [(one.role, one.text) for one in engine.rendered[-1].messages]

    path = {one.id: one for one in saved.messages}
    leaf = path[saved.leaf_id or saved.messages[-1].id]
    assert [one.conversation_id for one in found] == [made]
    assert rendered[-2:] == [(Role.ASSISTANT, leaf.text), (Role.USER, "go on")]
    assert rendered[0][0] is Role.SYSTEM


async def test_an_answer_that_came_in_is_given_again_but_not_taken_up_in_the_middle(db: Database):
    """What was cut is continued by its ids, and those do not come in."""
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation_id = (await domain.conversations.create(ann.user_id)).id
        await domain.say(ann, conversation_id, "hello", max_tokens=3)
        file = await Export(db).one(ann.user_id, conversation_id)
        (made,) = (
            await Imports(db, domain.hub, Apart(), domain.usage).take(ann.user_id, file)
        ).conversation_ids
        cut = (await Export(db).read(ann.user_id, made)).messages[-1]
        with pytest.raises(InvalidRequest) as refused:
            await domain.act(ann, Act.CONTINUE, cut.id)
        accepted = await domain.act(ann, Act.REGENERATE, cut.id)
        again = await domain.ended(ann, accepted.response)

    assert refused.value.code == "not_continuable"
    assert again.response.status is ResponseStatus.COMPLETED
    assert again.text.startswith(cut.text)


async def test_a_forged_file_puts_no_ids_into_a_prompt(db: Database):
    """Ids that say something else than the text would be a prompt that nobody sees."""
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        saved = await Export(db).read(ann.user_id, await grown(domain, ann))
        forged = [
            msgspec.structs.replace(one, token_ids=b"\7\0\0\0" * 9, head_token_ids=b"\7\0\0\0")
            for one in saved.messages
        ]
        file = archive(msgspec.structs.replace(saved, messages=forged))
        (made,) = (
            await Imports(db, domain.hub, Apart(), domain.usage).take(ann.user_id, file)
        ).conversation_ids
        async with db.read() as session:
            query = select(Message).where(Message.conversation_id == made)
            rows = list(await session.scalars(query))

    assert len(rows) == len(forged)
    assert all((one.token_ids, one.head_token_ids, one.seam) == ((), None, None) for one in rows)


async def test_19_an_export_tells_no_text_that_its_owner_may_not_read_any_more(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ann = await new_person(db, AccountRole.ADMIN), await new_person(db)
        says = Text(name="Secret", text="the secret words")
        listed = Access(visibility=Visibility.LISTED, readers=(f"{ann.user_id}@example.org",))
        item = await domain.library.create(boss.user_id, ItemKind.PERSONA, says, listed)
        persona_id = PersonaId(item.summary.id)
        made = await domain.conversations.create(ann.user_id, persona_id)
        export, imports = Export(db), Imports(db, domain.hub, Apart(), domain.usage)
        may = await export.one(ann.user_id, made.id)
        nobody = Access(visibility=Visibility.LISTED)
        await domain.library.set_access(boss.user_id, ItemKind.PERSONA, item.summary.id, nobody)
        may_not = await export.one(ann.user_id, made.id)
        came = await imports.take(ann.user_id, may)
        under = await domain.conversations.get(ann.user_id, came.conversation_ids[0])

    assert b"the secret words" in may
    assert b"secret words" not in may_not
    assert persona_id.encode() in may_not
    assert (came.under_default_persona, under.persona_id) == (1, DEFAULT_PERSONA.id)


async def test_an_answer_that_is_being_written_comes_in_as_interrupted(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        engine.hold(2)
        accepted = await domain.send(ann, conversation.id, "hello")
        file = await Export(db).one(ann.user_id, conversation.id)
        came = await Imports(db, domain.hub, Apart(), domain.usage).take(ann.user_id, file)
        messages = await domain.conversations.messages(ann.user_id, came.conversation_ids[0])
        engine.release()
        await domain.ended(ann, accepted.response)

    response = messages[-1].response
    assert response is not None
    assert (response.status, response.incomplete_reason) == (
        ResponseStatus.INCOMPLETE,
        "interrupted",
    )


@pytest.mark.usefixtures("one_day")
async def test_markdown_shows_the_branch_that_is_shown(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        first = await domain.say(ann, conversation.id, "# Where?")
        second = await domain.say(ann, conversation.id, "And then?", max_tokens=2)
        page = markdown(await Export(db).read(ann.user_id, conversation.id))
        empty = await domain.conversations.create(ann.user_id)
        bare = markdown(await Export(db).read(ann.user_id, empty.id))

    assert page == (
        f"# # Where?\n\n*{utc_now():%Y-%m-%d}, with Assistant*\n\n"
        f"## You\n\n# Where?\n\n## Answer\n\n{first.text}\n\n"
        f"## You\n\nAnd then?\n\n## Answer\n\n{second.text}\n\n*(not finished)*\n"
    )
    assert bare.startswith("# Conversation\n")


# ---------------------------------------------------------------- ChatGPT


def node(
    key: str, parent: str | None, role: str = "", *parts: object, **more: Any
) -> dict[str, Any]:
    content = {"content_type": more.pop("kind", "text"), "parts": list(parts)}
    message = {"author": {"role": role}, "content": content, "create_time": 1_700_000_000.5, **more}
    return {"id": key, "parent": parent, "children": [], "message": message if role else None}


def chatgpt(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    mapping = {one["id"]: one for one in nodes}
    for one in nodes:
        if one["parent"] in mapping:
            mapping[one["parent"]]["children"].append(one["id"])
    return {"title": "Ships", "create_time": 1_700_000_000.0, "mapping": mapping, **more}


SHIPS = chatgpt(
    node("root", None),
    node("hidden", "root", "system", ""),
    node("context", "hidden", "user", "x", kind="user_editable_context"),
    node("q", "context", "user", "Which ship?"),
    node("think", "q", "assistant", "hm", kind="thoughts"),
    node("search", "think", "assistant", "find()", recipient="web.run"),
    node("tool", "search", "tool", "found"),
    node("a1", "tool", "assistant", "The Argo.", metadata={"model_slug": "gpt-5"}),
    node("a1b", "a1", "assistant", "Of Jason."),
    node("a2", "q", "assistant", "The Victory."),
    node("look", "a2", "user", {"content_type": "image_asset_pointer"}, "And this?"),
    current_node="a1b",
    update_time=1_700_000_100.0,
)


async def test_chatgpts_export_comes_in_as_what_was_said(db: Database):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("chat.html", "<p>")
        packed.writestr("conversations.json", json.dumps([SHIPS]))
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        imports = Imports(db, domain.hub, Apart(), domain.usage)
        came = await imports.take(ann.user_id, file.getvalue())
        saved = await Export(db).read(ann.user_id, came.conversation_ids[0])
        view = await domain.conversations.get(ann.user_id, came.conversation_ids[0])
        end = await domain.say(ann, came.conversation_ids[0], "go on")

    place = {one.id: number for number, one in enumerate(saved.messages)}
    assert [
        (one.role, one.text, None if one.parent_id is None else place[one.parent_id])
        for one in saved.messages
    ] == [
        ("user", "Which ship?", None),
        ("assistant", "The Argo.\n\nOf Jason.", 0),
        ("assistant", "The Victory.", 0),
        ("user", "[image_asset_pointer]\n\nAnd this?", 2),
    ]
    assert saved.leaf_id == saved.messages[1].id
    assert saved.messages[1].response is not None
    assert saved.messages[1].response.model == "gpt-5"
    assert (view.title, view.persona_id) == ("Ships", DEFAULT_PERSONA.id)
    assert (view.created_at, view.updated_at) == (1_700_000_000.0, 1_700_000_100.0)
    assert end.response.status is ResponseStatus.COMPLETED


# ---------------------------------------------------------------- files that are refused


def archive(*saved: SavedConversation, **changes: object) -> bytes:
    whole = {"format": "keepwarm.conversations", "version": 1, "conversations": saved}
    return msgspec.json.encode(whole | changes)


def messages(*pairs: tuple[str, str | None], **more: Any) -> list[SavedMessage]:
    return [
        SavedMessage(id=one, parent_id=two, role=Role.USER, text="x", created_at=0.0, **more)  # type: ignore[arg-type]
        for one, two in pairs
    ]


def conversation(*found: SavedMessage) -> SavedConversation:
    return SavedConversation(
        id=ConversationId("c"),
        title="",
        reads=(),
        leaf_id=None,
        created_at=0.0,
        updated_at=0.0,
        messages=found,
    )


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("conversations.json", b" " * (LARGEST_UNPACKED + 1))
    return file.getvalue()


def damaged() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("conversations.json", json.dumps([SHIPS]))
    return file.getvalue().replace(b"conversations", b"conversationz", 1)[:-40]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b'[{"mapping":{"a":{"message":{"content":{"parts":' + b"[" * 100_000, "not JSON"),
        (b"{}", "no export"),
        (b"[1]", "no export"),
        (b"[]", "no conversation"),
        (archive(), "no conversation"),
        (archive(version=2), "version"),
        (archive(conversation(*messages(("a", "b")))), "parent"),
        (archive(conversation(*messages(("a", "b"), ("b", "a")))), "parent"),
        (archive(conversation(*messages(("a", "a")))), "parent"),
        (archive(conversation(*messages(("a", None), ("a", None)))), "same id"),
        (
            archive(conversation(*messages(("a", None), ("b", "a"), client_message_id="1"))),
            "same id",
        ),
        (archive(conversation(*messages(*((str(n), None) for n in range(20_001))))), "at most"),
        (b"PK\3\4" + b"\0" * 100, "ZIP"),
        (bomb(), "longer than"),
        (damaged(), "ZIP"),
    ],
    ids=range(18),
)
def test_what_is_no_export_is_refused_with_words(file: bytes, words: str):
    with pytest.raises(InvalidRequest, match=words) as refused:
        list(work(file, ""))

    assert refused.value.code.startswith("file_"), "the page has words for each such code"


async def test_what_is_refused_leaves_nothing(db: Database):
    good = conversation(*messages(("a", None), ("b", "a")))
    bad = conversation(*messages(("a", "gone")))
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        imports = Imports(db, domain.hub, Apart(), domain.usage)
        with pytest.raises(InvalidRequest) as refused:
            await imports.take(ann.user_id, archive(good, bad))
        async with db.read() as session:
            left = [
                await session.scalar(select(kind.id).limit(1))
                for kind in (Conversation, Message, Response)
            ]
        came = await imports.take(ann.user_id, archive(good))

    assert refused.value.field == "conversations[1].messages"
    assert left == [None] * 3
    assert came.messages == 2


async def test_times_and_depths_of_any_size_come_in(db: Database):
    deep = messages(("0", None), *((str(n), str(n - 1)) for n in range(1, 3000)))
    times = [0.0, 1e300, 5e-324, 4e9]
    odd = [
        msgspec.structs.replace(one, created_at=at)
        for one, at in zip(messages(*((str(n), None) for n in range(4))), times, strict=True)
    ]
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        imports = Imports(db, domain.hub, Apart(), domain.usage)
        came = await imports.take(ann.user_id, archive(conversation(*deep), conversation(*odd)))
        export = Export(db)
        sizes = [
            len((await export.read(ann.user_id, one)).messages) for one in came.conversation_ids
        ]
        siblings = (await export.read(ann.user_id, came.conversation_ids[1])).messages

    assert sizes == [3000, 4]
    assert sorted(one.id for one in siblings) == [one.id for one in siblings]
    assert all(one.created_at <= utc_now().timestamp() for one in siblings)


def test_any_damage_to_a_file_is_refused_or_read_never_worse():
    whole = archive(conversation(*messages(("a", None), ("b", "a")))) + json.dumps([SHIPS]).encode()
    for place in range(0, len(whole), 7):
        for other in (b"", b"0", b"null", b'"', b"\0", b"}"):
            damaged = whole[:place] + other + whole[place + 1 :]
            for file in (damaged, damaged[: place + 1]):
                with contextlib.suppress(InvalidRequest):
                    list(work(file, ""))


# ---------------------------------------------------------------- over HTTP


@pytest.mark.row("36")
async def test_the_page_takes_conversations_out_and_in(house: Serving):
    async with somebody(house) as ann:
        conversation_id = await ann.conversation()
        turn = {"client_message_id": "m1", "parent_id": None, "text": "Where?"}
        await ann.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
        page = f"/api/conversations/{conversation_id}/export"
        one, text, whole = [
            await ann.client.get(path) for path in (page, f"{page}?form=markdown", "/api/export")
        ]
        came = await ann.client.post("/api/import", content=one.content)
        tree = await ann.client.get(f"/api/conversations/{came.json()['conversation_ids'][0]}")
        refused = [
            await ann.client.post("/api/import", content=b"{}"),
            await ann.client.post("/api/import", content=b" " * (LARGEST_IMPORT + 1)),
            await ann.client.get("/api/conversations/conv_0/export"),
            await ann.client.get(f"{page}?form=html"),
        ]

    assert came.status_code == 201, came.text
    assert msgspec.json.decode(whole.content, type=Archive).conversations[0].id == conversation_id
    assert text.headers["content-type"] == "text/markdown; charset=utf-8"
    assert f'filename="{conversation_id}.md"' in text.headers["content-disposition"]
    assert "## You\n\nWhere?" in text.text
    assert tree.json()["messages"][0]["text"] == "Where?"
    assert [one.status_code for one in refused] == [400, 413, 404, 400]
