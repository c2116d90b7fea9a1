"""The library on both databases: versions, who may read them, what they become at a prompt's head."""

import asyncio

import msgspec
import pytest
from sqlalchemy import select, update

from app.chat import library as shelf
from app.chat import warming
from app.chat.disposal import Disposal
from app.chat.library import DEFAULT_PERSONA, Access, Item, Text
from app.chat.warming import OPERATOR
from app.db.base import Database
from app.db.models import LibraryVersion, User
from app.db.types import AccountRole, ItemKind, Visibility
from app.errors import Conflict, Forbidden, InvalidRequest, NotFound
from app.ids import ConversationId, DocumentId, ItemId, PersonaId
from app.people.accounts import Principal
from engine.api import (
    OPERATOR_SCOPE,
    Forget,
    Hold,
    JobClass,
    Message,
    Refusal,
    RetentionClass,
    Role,
    Seam,
    SubjectKind,
)
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import CARD, EchoEngine, text_of

PERSONA, DOCUMENT = ItemKind.PERSONA, ItemKind.DOCUMENT
PIRATE = Text(name="Pirate", text="Talk like a pirate.")
SHOTS = (
    Message(role=Role.USER, text="Hello"),
    Message(role=Role.ASSISTANT, text="Ahoy"),
)
CHARTER = Text(name="Charter", text="The ship has two masts.")
EVERYBODY = Access(visibility=Visibility.EVERYBODY)
OWN = Access(visibility=Visibility.OWNER)


def listed(*people: Principal) -> Access:
    emails = tuple(f"{one.user_id}@example.org" for one in people)
    return Access(visibility=Visibility.LISTED, readers=emails)


async def an_admin(db: Database) -> Principal:
    return await new_person(db, AccountRole.ADMIN)


async def publish(
    domain: Domain, who: Principal, says: Text, access: Access = EVERYBODY
) -> PersonaId:
    made = await domain.library.create(who.user_id, PERSONA, says, access)
    return PersonaId(made.summary.id)


async def put(
    domain: Domain, who: Principal, says: Text = CHARTER, access: Access = EVERYBODY
) -> DocumentId:
    made = await domain.library.create(who.user_id, DOCUMENT, says, access)
    return DocumentId(made.summary.id)


async def begin(
    domain: Domain, who: Principal, persona_id: PersonaId, *document_ids: DocumentId
) -> ConversationId:
    return (await domain.conversations.create(who.user_id, persona_id, document_ids)).id


def heads(engine: EchoEngine) -> list[str]:
    """What each turn's prompt had before its own words."""
    turns = [job for job in engine.jobs if job.session_id and job.owner_id != OPERATOR]
    return [text_of(job.token_ids[: job.zones[-2].end]) for job in turns]


def scopes(engine: EchoEngine) -> list[str]:
    return [zone.scope for zone in engine.jobs[-1].zones]


# ---------------------------------------------------------------- versions


async def test_the_default_persona_is_published_once_and_follows_the_program(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        old = await begin(domain, ann, DEFAULT_PERSONA.id)
        await domain.library.ensure_default()
        newer = msgspec.structs.replace(DEFAULT_PERSONA, instructions="Be of help.")
        monkeypatch.setattr(shelf, "DEFAULT_PERSONA", newer)
        await domain.library.ensure_default()
        await domain.library.ensure_default()
        new = await begin(domain, ann, DEFAULT_PERSONA.id)
        await domain.say(ann, old, "one")
        await domain.say(ann, new, "two")
        views = [await domain.conversations.get(ann.user_id, one) for one in (old, new)]

    assert [view.persona_version for view in views] == [1, 2]
    assert heads(engine) == [DEFAULT_PERSONA.instructions, "Be of help."]


async def test_an_administrators_text_of_the_default_persona_outlives_a_release(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    async with open_domain(db, EchoEngine()) as domain:
        boss = await an_admin(db)
        await domain.library.add_version(boss.user_id, PERSONA, DEFAULT_PERSONA.id, PIRATE)
        newer = msgspec.structs.replace(DEFAULT_PERSONA, instructions="Be of help.")
        monkeypatch.setattr(shelf, "DEFAULT_PERSONA", newer)
        await domain.library.ensure_default()
        now = await domain.library.read(boss.user_id, PERSONA, DEFAULT_PERSONA.id)

    assert (now.summary.version, now.says) == (2, PIRATE)


async def test_a_new_version_leaves_the_old_one_to_the_conversations_that_have_it(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        persona_id = await publish(domain, boss, PIRATE)
        old = await begin(domain, ann, persona_id)
        await domain.say(ann, old, "one")
        says = msgspec.structs.replace(PIRATE, text="Talk like a parrot.")
        await domain.library.add_version(boss.user_id, PERSONA, persona_id, says)
        new = await begin(domain, ann, persona_id)
        await domain.say(ann, new, "one")
        await domain.say(ann, old, "two")
        moved = await domain.conversations.move_to_newest(ann.user_id, old)
        await domain.say(ann, old, "three")

    assert moved.persona_version == 2
    pirate, parrot = "Talk like a pirate.", "Talk like a parrot."
    assert heads(engine) == [pirate, parrot, pirate, parrot]


async def test_a_conversation_reads_few_shots_and_documents_in_one_order(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        first = await put(domain, boss)
        second = await put(domain, boss, Text(name="Log", text="We sank."))
        third = await put(domain, boss, Text(name="Song", text="Yo ho ho."))
        says = msgspec.structs.replace(PIRATE, examples=SHOTS, document_ids=(third,))
        persona_id = await publish(domain, boss, says)
        for picked in ((first, second), (second, first, second)):
            await domain.say(ann, await begin(domain, ann, persona_id, *picked), "hello")

    one, other = heads(engine)
    assert one == other
    order = ["pirate", "Hello", "Ahoy", "two masts", "sank", "Yo ho"]
    assert [one.index(word) for word in order] == sorted(one.index(word) for word in order)
    sources = [zone.source.value for zone in engine.jobs[-1].zones]
    assert sources == ["template", "persona", "document", "document", "document", "session"]


async def test_moving_keeps_what_was_picked_and_takes_what_comes_with_the_persona(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        came, comes, picked = [await put(domain, boss) for _ in range(3)]
        says = msgspec.structs.replace(PIRATE, document_ids=(came,))
        persona_id = await publish(domain, boss, says)
        conversation_id = await begin(domain, ann, persona_id, picked)
        says = msgspec.structs.replace(PIRATE, document_ids=(comes,))
        await domain.library.add_version(boss.user_id, PERSONA, persona_id, says)
        before = await domain.conversations.get(ann.user_id, conversation_id)
        after = await domain.conversations.move_to_newest(ann.user_id, conversation_id)

    assert before.document_ids == (came, picked)
    assert after.document_ids == (comes, picked)


async def test_what_is_archived_is_offered_no_more_and_goes_on_where_it_is_used(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        persona_id, document_id = await publish(domain, boss, PIRATE), await put(domain, boss)
        old = await begin(domain, ann, persona_id, document_id)
        for kind, item_id in ((PERSONA, persona_id), (DOCUMENT, document_id)):
            await domain.library.archive(boss.user_id, kind, item_id, archived=True)
        with pytest.raises(NotFound, match="persona"):
            await begin(domain, ann, persona_id)
        with pytest.raises(NotFound, match="document"):
            await begin(domain, ann, DEFAULT_PERSONA.id, document_id)
        await domain.say(ann, old, "one")
        offered = await domain.library.list(ann.user_id, PERSONA)
        kept = await domain.library.list(boss.user_id, PERSONA)
        await domain.library.archive(boss.user_id, PERSONA, persona_id, archived=False)
        await begin(domain, ann, persona_id)

    assert [one.id for one in offered] == [DEFAULT_PERSONA.id]
    assert [(one.id, one.is_archived) for one in kept] == [
        (DEFAULT_PERSONA.id, False),
        (persona_id, True),
    ]
    (head,) = heads(engine)
    assert head.startswith(PIRATE.text)


@pytest.mark.row("engine 4")
async def test_03_a_version_is_compiled_once_and_again_for_another_model_only(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        persona_id, document_id = await publish(domain, boss, PIRATE), await put(domain, boss)
        engine.rendered.clear()
        begun = [await begin(domain, ann, persona_id, document_id) for _ in range(10)]
        await asyncio.gather(*(domain.say(ann, one, "hello") for one in begun))
    compiled = [one for one in engine.rendered if not one.opens_reply]
    assert [one.seam for one in compiled] == [Seam.START, Seam.CLOSED]

    async def rendered_later(engine: EchoEngine) -> list[str]:
        async with open_domain(db, engine) as domain:
            fresh = await begin(domain, ann, persona_id, document_id)
            await domain.say(ann, fresh, "hello")
            await domain.say(ann, fresh, "again")
        return [one.messages[0].text for one in engine.rendered if not one.opens_reply]

    other = msgspec.structs.replace(CARD, template_fingerprint="other")
    assert await rendered_later(EchoEngine()) == []
    assert len(await rendered_later(EchoEngine(other))) == 2
    assert await rendered_later(EchoEngine(other)) == []
    async with db.read() as session:
        query = select(LibraryVersion).where(LibraryVersion.item_id == persona_id)
        (version,) = await session.scalars(query)
    assert version.template_fingerprint == "other"
    assert text_of(version.token_ids or ()) == PIRATE.text


async def test_what_begins_just_as_it_is_deleted_keeps_it_or_is_refused(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        disposal, ann = Disposal(db, domain.library), await new_person(db)
        for _ in range(5):
            persona_id = await publish(domain, ann, PIRATE, OWN)
            begun, deleted = await asyncio.gather(
                domain.conversations.create(ann.user_id, persona_id),
                disposal.delete(ann.user_id, PERSONA, persona_id),
                return_exceptions=True,
            )
            assert isinstance(deleted, Conflict) is not isinstance(begun, NotFound), deleted
            if not isinstance(begun, BaseException):
                await domain.say(ann, begun.id, "hello")
            document_id = await put(domain, ann, access=OWN)
            says = msgspec.structs.replace(PIRATE, document_ids=(document_id,))
            made, deleted = await asyncio.gather(
                domain.library.create(ann.user_id, PERSONA, says, OWN),
                disposal.delete(ann.user_id, DOCUMENT, document_id),
                return_exceptions=True,
            )
            assert isinstance(deleted, Conflict) is not isinstance(made, NotFound), deleted
            if not isinstance(made, BaseException):
                await begin(domain, ann, PersonaId(made.summary.id))


# ---------------------------------------------------------------- who may


async def test_19_what_one_may_not_read_is_as_unknown_as_what_never_was(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ann, eve = await an_admin(db), await new_person(db), await new_person(db)
        persona_id = await publish(domain, ann, PIRATE, OWN)
        document_id = await put(domain, boss, access=listed(ann))
        gone = await put(domain, boss)
        await domain.library.archive(boss.user_id, DOCUMENT, gone, archived=True)
        none, nowhere = PersonaId(ItemId("persona_0")), DocumentId(ItemId("document_0"))
        said = []
        for one in (persona_id, none):
            said += [
                await refused(begin(domain, eve, one)),
                await refused(domain.library.read(eve.user_id, PERSONA, one)),
                await refused(domain.library.add_version(eve.user_id, PERSONA, one, PIRATE)),
                await refused(domain.library.set_access(eve.user_id, PERSONA, one, OWN)),
                await refused(domain.library.archive(eve.user_id, PERSONA, one, archived=True)),
            ]
        assert set(said) == {("There is no such persona.", "persona_id")}
        said = []
        for other in (document_id, gone, nowhere):
            said += [
                await refused(begin(domain, eve, DEFAULT_PERSONA.id, other)),
                await refused(domain.library.read(eve.user_id, DOCUMENT, other))
                if other is not gone
                else said[0],
                await refused(
                    domain.library.create(
                        eve.user_id,
                        PERSONA,
                        msgspec.structs.replace(PIRATE, document_ids=(other,)),
                        OWN,
                    )
                )
                if other is not gone
                else said[0],
            ]
        assert set(said) == {("There is no such document.", "document_id")}
        seen = [await domain.library.list(eve.user_id, kind) for kind in ItemKind]
        admins = await domain.library.list(boss.user_id, PERSONA)

    assert [[one.id for one in kind] for kind in seen] == [[DEFAULT_PERSONA.id], []]
    assert [one.id for one in admins] == [DEFAULT_PERSONA.id], "not even an administrator"


async def refused(work) -> tuple[str, str | None]:
    with pytest.raises(NotFound) as error:
        await work
    return error.value.message, error.value.field


async def test_11_permission_is_asked_before_every_turn(db: Database):
    """Whoever lost it gets no head any more, and so nothing that could be matched."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        persona_id = await publish(domain, boss, PIRATE, listed(ann))
        conversation_id = await begin(domain, ann, persona_id)
        await domain.say(ann, conversation_id, "one")
        await domain.library.set_access(boss.user_id, PERSONA, persona_id, listed(boss))
        with pytest.raises(NotFound, match="persona"):
            await domain.say(ann, conversation_id, "two")
        sent = len(engine.jobs)
        await domain.library.set_access(boss.user_id, PERSONA, persona_id, listed(ann))
        await domain.say(ann, conversation_id, "two")

    assert sent == 1
    assert len(engine.jobs) == 2


async def test_11_a_text_lies_in_the_scope_of_those_who_may_read_it(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        everybodys, some = await publish(domain, boss, PIRATE), listed(ann)
        listed_id = await publish(domain, boss, PIRATE, some)
        own_id = await publish(domain, ann, PIRATE, OWN)
        document_id, secret_id = await put(domain, boss), await put(domain, boss, access=some)
        own = f"user:{ann.user_id}"
        behind, secret = f"operator:{listed_id}", f"operator:{secret_id}"
        expected = {
            everybodys: [OPERATOR_SCOPE, OPERATOR_SCOPE, OPERATOR_SCOPE, secret, own],
            listed_id: [OPERATOR_SCOPE, behind, behind, secret, own],
            own_id: [OPERATOR_SCOPE, own, own, own, own],
        }
        found = {}
        for persona_id in expected:
            conversation_id = await begin(domain, ann, persona_id, secret_id, document_id)
            await domain.say(ann, conversation_id, "hello")
            found[persona_id] = scopes(engine)

    assert document_id < secret_id, "the one made first stands first"
    assert found == expected


async def test_only_administrators_publish(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        for access in (EVERYBODY, listed(ann)):
            with pytest.raises(Forbidden):
                await publish(domain, ann, PIRATE, access)
        own_id = await publish(domain, ann, PIRATE, OWN)
        with pytest.raises(InvalidRequest, match="one's own"):
            await domain.library.set_access(ann.user_id, PERSONA, own_id, EVERYBODY)
        with pytest.raises(InvalidRequest, match="has the address"):
            somebody = Access(visibility=Visibility.LISTED, readers=("nobody@example.org",))
            await publish(domain, boss, PIRATE, somebody)
        with pytest.raises(InvalidRequest, match="listed"):
            everybody = Access(visibility=Visibility.EVERYBODY, readers=listed(ann).readers)
            await publish(domain, boss, PIRATE, everybody)
        persona_id = await publish(domain, boss, PIRATE)
        async with db.begin() as session:
            demoted = update(User).where(User.id == boss.user_id)
            await session.execute(demoted.values(role=AccountRole.MEMBER))
        with pytest.raises(NotFound):
            await domain.library.add_version(boss.user_id, PERSONA, persona_id, PIRATE)


async def test_readers_are_told_to_those_who_may_edit(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        item_id = await publish(domain, boss, PIRATE, listed(ann))
        seen = [await domain.library.read(who.user_id, PERSONA, item_id) for who in (boss, ann)]

    assert [item.readers for item in seen] == [listed(ann).readers, ()]
    assert [item.summary.is_editable for item in seen] == [True, False]


async def test_the_default_persona_stays_everybodys(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss = await an_admin(db)
        with pytest.raises(Conflict):
            await domain.library.archive(boss.user_id, PERSONA, DEFAULT_PERSONA.id, archived=True)
        with pytest.raises(Conflict):
            await domain.library.set_access(boss.user_id, PERSONA, DEFAULT_PERSONA.id, listed(boss))


async def test_an_account_has_so_many_of_its_own(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shelf, "OWN_ITEMS", 2)
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        for _ in range(2):
            await publish(domain, ann, PIRATE, OWN)
        with pytest.raises(Conflict, match="at most 2"):
            await publish(domain, ann, PIRATE, OWN)
        await put(domain, ann, access=OWN)
        await publish(domain, ben, PIRATE, OWN)


async def test_two_who_publish_at_once_make_two_versions(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        boss = await an_admin(db)
        item_id = await publish(domain, boss, PIRATE)
        texts = [msgspec.structs.replace(PIRATE, text=f"Number {n}.") for n in range(4)]
        made: list[Item] = await asyncio.gather(
            *(domain.library.add_version(boss.user_id, PERSONA, item_id, one) for one in texts)
        )

    assert sorted(item.summary.version for item in made) == [2, 3, 4, 5]
    assert [item.says for item in made] == texts


# ---------------------------------------------------------------- warm


async def test_what_is_published_is_computed_in_the_background_and_leased_as_shared(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        await publish(domain, ann, PIRATE, OWN)
        persona_id = await publish(domain, boss, PIRATE)
        document_id = await put(domain, boss)
        await domain.warming.refresh()
        await domain.warming.refresh()

    default = f"{DEFAULT_PERSONA.id}@1"
    subjects = [
        (SubjectKind.PERSONA, default),
        (SubjectKind.PERSONA, f"{persona_id}@1"),
        (SubjectKind.DOCUMENT, f"{default} {document_id}@1"),
        (SubjectKind.DOCUMENT, f"{persona_id}@1 {document_id}@1"),
    ]
    assert [(one.kind, one.subject_id) for one, _ in engine.leases] == subjects
    assert [wish for _, wish in engine.leases] == [Hold(retention=RetentionClass.SHARED)] * 4
    assert [(job.session_id, job.owner_id) for job in engine.jobs] == [
        (subject_id, OPERATOR) for _, subject_id in subjects
    ]
    assert {job.job_class for job in engine.jobs} == {JobClass.BACKGROUND}
    assert {job.limits.max_output_tokens for job in engine.jobs} == {0}
    assert {zone.scope for job in engine.jobs for zone in job.zones} == {OPERATOR_SCOPE}


async def test_of_pairs_that_nobody_uses_only_what_fits_into_a_quarter_of_the_cache_is_warmed(
    db: Database,
):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        personas = [await publish(domain, boss, PIRATE) for _ in range(3)]
        document_id = await put(domain, boss)
        await domain.warming.refresh()
        pairs = [f"{persona_id}@1 {document_id}@1" for persona_id in personas]
        all_of_them = {one.subject_id for one, _ in engine.leases}
        (tokens,) = {len(job.token_ids) for job in engine.jobs if job.session_id in pairs}

        engine.leases.clear()
        blocks = -(-tokens * 4 // CARD.block_tokens)
        engine.card = msgspec.structs.replace(CARD, boot_id="boot-2", pool_blocks=blocks)
        await begin(domain, ann, personas[2], document_id)
        await domain.warming.refresh()

    assert all_of_them >= set(pairs)
    warm = [one.subject_id for one, _ in engine.leases]
    assert [one for one in warm if one in pairs] == [pairs[2], pairs[0]], "in use, then what fits"


async def test_heads_beyond_the_bound_are_told(db: Database, monkeypatch, caplog):
    monkeypatch.setattr(warming, "MOST_WARMED", 2)
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss = await an_admin(db)
        for _ in range(3):
            await publish(domain, boss, PIRATE)
        await domain.warming.refresh()

    assert len(engine.jobs) == len(domain.warming.warm) == 2
    assert "2 heads are not warmed, 2 are" in caplog.text


async def test_what_the_engine_had_no_room_for_is_computed_at_a_later_look(db: Database):
    engine = EchoEngine()
    full = Refusal(code="overloaded", message="The queue is full.", retry_after_s=1.0)
    long = Refusal(code="prompt_too_long", message="It does not fit.")
    async with open_domain(db, engine) as domain:
        asked = []
        for refusal in (full, full, long, None):
            engine.refusal = refusal
            await domain.warming.refresh()
            asked.append(len(engine.jobs))

    assert asked == [1, 2, 3, 3]  # what never fits is not tried again before an hour
    subjects = {subject.subject_id for subject, _ in engine.leases}
    assert subjects == {f"{DEFAULT_PERSONA.id}@1"}


async def test_a_superseded_version_is_let_go_when_nobody_is_under_it(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        persona_id = await publish(domain, boss, PIRATE)
        conversation_id = await begin(domain, ann, persona_id)
        await domain.warming.refresh()
        await domain.library.add_version(boss.user_id, PERSONA, persona_id, CHARTER)
        await domain.warming.refresh()
        both = {str(one[0]) for one in domain.warming.warm}
        await domain.conversations.delete(ann.user_id, conversation_id)
        engine.leases.clear()
        await domain.warming.refresh()
        await domain.library.archive(boss.user_id, PERSONA, persona_id, archived=True)
        await domain.warming.refresh()

    assert both == {f"{DEFAULT_PERSONA.id}@1", f"{persona_id}@1", f"{persona_id}@2"}
    assert [(one.subject_id, wish) for one, wish in engine.leases] == [
        (f"{persona_id}@1", Hold(retention=RetentionClass.IDLE)),
        (f"{persona_id}@2", Hold(retention=RetentionClass.IDLE)),
    ]


async def test_what_others_may_read_now_is_forgotten_where_it_lay(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        boss, ann = await an_admin(db), await new_person(db)
        persona_id = await publish(domain, boss, PIRATE)
        await domain.warming.refresh()
        await domain.library.set_access(boss.user_id, PERSONA, persona_id, listed(ann))
        engine.leases.clear()
        await domain.warming.refresh()

    assert [wish for _, wish in engine.leases] == [
        Forget(),
        Hold(retention=RetentionClass.SHARED),
    ]
    assert scopes(engine) == [OPERATOR_SCOPE, f"operator:{persona_id}"]


async def test_another_life_of_the_engine_is_warmed_anew(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        await domain.warming.refresh()
        engine.card = msgspec.structs.replace(CARD, boot_id="boot-2")
        await domain.warming.refresh()

    assert len(engine.jobs) == len(engine.leases) == 2
