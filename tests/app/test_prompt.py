"""From a branch to a prompt: exact ids, zones, history, and how little is rendered."""

from typing import Any

import msgspec
import pytest

from app.chat.entry import TurnRequest
from app.chat.library import DEFAULT_PERSONA
from app.db.base import Database
from app.db.models import Message as MessageRow
from app.ids import ConversationId, MessageId
from app.people.accounts import Principal
from engine.api import (
    OPERATOR_SCOPE,
    CacheSource,
    Message,
    ModelCard,
    Role,
    Scope,
    Seam,
    Stability,
    TemplateFault,
    TemplateFaultKind,
    TemplateFinding,
    Zone,
)
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import (
    CARD,
    END,
    FIRST_CHARACTER,
    OPEN,
    EchoEngine,
    ids_of,
    text_of,
    with_template,
)


async def a_conversation(domain: Domain, who: Principal) -> ConversationId:
    return (await domain.conversations.create(who.user_id)).id


@pytest.mark.row("engine 33")
async def test_only_the_new_message_is_rendered(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation_id = await a_conversation(domain, ann)
        for text in ("one", "two", "three"):
            await domain.say(ann, conversation_id, text)

    head, *turns = engine.rendered
    assert head.messages == DEFAULT_PERSONA.messages
    assert [[message.text for message in turn.messages] for turn in turns] == [
        ["one"],
        ["two"],
        ["three"],
    ]
    assert [turn.seam for turn in turns] == [Seam.CLOSED, Seam.STOPPED, Seam.STOPPED]


async def test_03_what_is_rendered_before_the_look_is_what_is_rendered_after_it(db: Database):
    """Behind a message that was gone on from before, and only where it ends as it did then."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation_id = await a_conversation(domain, ann)
        first = await domain.say(ann, conversation_id, "one")
        leaf_id = first.response.message_id
        for text in (texts := ("two", "three", "four")):
            if text == "four":
                await cut(db, leaf_id)
            accepted = await domain.supervisor.create(ann, below(conversation_id, leaf_id, text))
            await domain.ended(ann, accepted.response)

    told = [request for request in engine.rendered if request.seam is not Seam.START]
    assert [(request.messages[0].text, request.seam) for request in told] == [
        ("one", Seam.CLOSED),
        ("two", Seam.STOPPED),
        ("three", Seam.STOPPED),  # before the look
        ("four", Seam.STOPPED),  # before it, and in vain
        ("four", Seam.CUT),
    ]
    said = {text: (OPEN[Role.USER], *ids_of(text), END, OPEN[Role.ASSISTANT]) for text in texts}
    _, _, three, four = (job.token_ids for job in engine.jobs)
    assert three[-len(said["three"]) :] == said["three"]
    assert four[-len(said["four"]) - 1 :] == (END, *said["four"]), "the cut answer is closed"
    assert four[-len(said["four"]) - 2] != END, "and only once"


def below(conversation_id: ConversationId, parent_id: MessageId, text: str) -> TurnRequest:
    return TurnRequest(
        conversation_id=conversation_id,
        message_id=parent_id,
        messages=(Message(role=Role.USER, text=text),),
    )


async def cut(db: Database, message_id: MessageId) -> None:
    """As if the answer had ended without its end-of-turn token."""
    async with db.begin() as session:
        row = await session.get_one(MessageRow, message_id)
        row.seam, row.token_ids = Seam.CUT, row.token_ids[:-1]


async def test_a_personas_head_is_rendered_once_for_all(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        for _ in range(3):
            who = await new_person(db)
            await domain.say(who, await a_conversation(domain, who), "hello")

    assert [request.seam for request in engine.rendered].count(Seam.START) == 1
    heads = {job.token_ids[: job.zones[1].end] for job in engine.jobs}
    assert len(heads) == 1


async def test_a_persona_lies_in_the_operator_zone_and_the_rest_in_the_users(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        await domain.say(ann, await a_conversation(domain, ann), "hello")

    (job,) = engine.jobs
    head = len(DEFAULT_PERSONA.instructions) + 3
    assert job.zones == (
        Zone(scope=OPERATOR_SCOPE, source=CacheSource.TEMPLATE, end=1),
        Zone(scope=OPERATOR_SCOPE, source=CacheSource.PERSONA, end=head),
        Zone(
            scope=Scope(f"user:{ann.user_id}"),
            source=CacheSource.SESSION,
            end=len(job.token_ids),
        ),
    )


async def test_instructions_lie_in_the_users_zone_and_are_not_inherited(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "hello", instructions="Be brief.")
        await domain.ended(ann, first)
        await domain.ended(ann, await domain.respond(ann, "again", first))

    told, bare = engine.jobs
    own = Scope(f"user:{ann.user_id}")
    assert [(zone.scope, zone.end) for zone in told.zones] == [
        (OPERATOR_SCOPE, 1),
        (own, len(told.token_ids)),
    ]
    instructions = len("Be brief.") + 2
    assert bare.token_ids[: len(told.token_ids) - instructions] == (
        told.token_ids[:1] + told.token_ids[1 + instructions :]
    )
    assert bare.history is not None
    assert bare.history.head_end == 1 + instructions


@pytest.mark.row("side channels")
async def test_11_what_instructions_come_to_is_remembered_for_who_wrote_them(db: Database):
    """Else who sends another's would be answered sooner, by the time that rendering them takes."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, ben = await new_person(db), await new_person(db)

        async def rendered(who: Principal) -> int:
            before = len(engine.rendered)
            told = await domain.respond(who, "hello", instructions="Be brief.")
            await domain.ended(who, told)
            return [request.seam for request in engine.rendered[before:]].count(Seam.START)

        counts = [await rendered(who) for who in (ann, ann, ben, ben)]
        await domain.supervisor.forget_user(ann.user_id)
        counts += [await rendered(who) for who in (ann, ben)]

    assert counts == [1, 0, 1, 0, 1, 0]


async def test_several_messages_become_a_chain_with_a_slice_each(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        messages = (
            Message(role=Role.SYSTEM, text="rules"),
            Message(role=Role.USER, text="q"),
            Message(role=Role.ASSISTANT, text="a"),
            Message(role=Role.USER, text="next"),
        )
        response = await domain.respond(ann, "", messages=messages)
        await domain.ended(ann, response)
        nodes = await domain.nodes(response.message_id)

    (job,) = engine.jobs
    assert [node.text for node in nodes[:-1]] == ["rules", "q", "a", "next"]
    assert nodes[0].head_token_ids is None
    head = nodes[3].head_token_ids
    assert head is not None
    assert head + sum((node.token_ids for node in nodes[:-1]), ()) == job.token_ids
    assert [node.seam for node in nodes] == [
        Seam.CLOSED,
        Seam.CLOSED,
        Seam.CLOSED,
        Seam.CUT,
        Seam.STOPPED,
    ]


async def test_a_warm_up_is_followed_from_a_closed_seam(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        warm = await domain.respond(ann, "context", generate=False)
        await domain.ended(ann, warm)
        await domain.ended(ann, await domain.respond(ann, "question", warm))

    first, second = engine.jobs
    assert first.limits.max_output_tokens == 0
    assert engine.rendered[0].opens_reply is False
    assert engine.rendered[1].seam is Seam.CLOSED
    assert second.token_ids[: len(first.token_ids)] == first.token_ids
    assert second.history is not None
    assert second.history.token_ids == first.token_ids


@pytest.mark.parametrize("store", [True, False], ids=["stored", "in memory"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "unstable"])
async def test_02_a_warmed_message_is_answered_from_where_the_warm_up_ended(
    db: Database, *, store: bool, stable: bool
):
    engine = EchoEngine(with_template(stable=stable))
    told: Any = {"instructions": "Be brief.", "store": store}
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        warm = await domain.respond(ann, "question", generate=False, **told)
        await domain.ended(ann, warm)
        answer = await domain.respond(ann, "", warm, messages=(), **told)
        end = await domain.ended(ann, answer)
        items = await domain.supervisor.input_items(ann, answer.id)
        await domain.ended(ann, await domain.respond(ann, "more", answer, **told))

    warmed, answered, later = engine.jobs
    assert answered.token_ids == (*warmed.token_ids, OPEN[Role.ASSISTANT])
    assert end.response.receipt is not None
    assert end.response.receipt.computed_tokens == 1
    assert answer.parent_id == warm.message_id
    assert items == ()
    output = tuple(FIRST_CHARACTER + ord(character) for character in end.text)
    if stable:
        assert [request.messages for request in engine.rendered[-2:-1]] == [()]
        assert later.token_ids[: len(answered.token_ids) + len(output) + 1] == (
            *answered.token_ids,
            *output,
            END,
        )
    assert later.history is not None
    assert later.history.token_ids == (*answered.token_ids, *output, END)
    assert later.token_ids[: len(later.history.token_ids)] == later.history.token_ids


@pytest.mark.parametrize("store", [True, False], ids=["stored", "in memory"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "unstable"])
async def test_02_warmed_instructions_are_found_by_the_turn_that_repeats_them(
    db: Database, *, store: bool, stable: bool
):
    engine = EchoEngine(with_template(stable=stable))
    told: Any = {"instructions": "Be brief.", "store": store}
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        warm = await domain.respond(ann, "", messages=(), generate=False, **told)
        await domain.ended(ann, warm)
        same = await domain.respond(ann, "hello", warm, **told)
        found = (await domain.ended(ann, same)).response.receipt
        bare = await domain.respond(ann, "hello", warm, store=store)
        await domain.ended(ann, bare)
        items = await domain.supervisor.input_items(ann, warm.id)

    warmed, repeated, alone = engine.jobs
    own = Scope(f"user:{ann.user_id}")
    assert text_of(warmed.token_ids) == "Be brief."
    assert [zone.scope for zone in warmed.zones] == [OPERATOR_SCOPE, own]
    assert repeated.token_ids[: len(warmed.token_ids)] == warmed.token_ids
    assert found is not None
    assert found.cached_tokens == len(warmed.token_ids)
    assert repeated.history is not None
    assert repeated.history.token_ids == warmed.token_ids
    assert text_of(alone.token_ids) == "hello"
    assert items == ()


async def test_03_a_warm_up_in_mid_conversation_leaves_no_trace_in_the_ids(db: Database):
    """Here a reply that ended by itself; one that was cut is closed by the same rendering."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "one")
        await domain.ended(ann, first)
        warm = await domain.respond(ann, "", first, messages=(), generate=False)
        await domain.ended(ann, warm)
        through = await domain.respond(ann, "two", warm)
        await domain.ended(ann, through)
        await domain.ended(ann, await domain.respond(ann, "two", first))
        nodes = await domain.nodes(through.message_id)

    _, warmed, after_warming, direct = engine.jobs
    assert after_warming.token_ids == direct.token_ids
    assert after_warming.token_ids[: len(warmed.token_ids)] == warmed.token_ids
    assert [node.is_mark for node in nodes] == [False, False, True, False, False]


async def test_03_a_mark_is_never_told_to_a_template(db: Database):
    engine = EchoEngine()
    told: Any = {"instructions": "Be brief."}
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        warm = await domain.respond(ann, "", messages=(), generate=False, **told)
        await domain.ended(ann, warm)
        first = await domain.respond(ann, "one", warm, **told)
        reply = await domain.ended(ann, first)
        engine.card = msgspec.structs.replace(CARD, template_fingerprint="other")
        engine.rendered.clear()
        for text in ("two", "three"):
            first = await domain.respond(ann, text, first, **told)
            await domain.ended(ann, first)

    whole, only_new = engine.rendered
    assert [message.text for message in whole.messages] == ["Be brief.", "one", reply.text, "two"]
    assert [message.text for message in only_new.messages] == ["three"]


async def test_warming_the_personas_head_is_warming_it_for_everybody(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        warm = await domain.respond(
            ann, "", messages=(), generate=False, persona_id=DEFAULT_PERSONA.id
        )
        await domain.ended(ann, warm)

    (job,) = engine.jobs
    assert {zone.scope for zone in job.zones} == {OPERATOR_SCOPE}
    assert job.zones[-1].end == len(job.token_ids)


async def test_the_history_is_what_the_turn_before_sent_and_got(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation_id = await a_conversation(domain, ann)
        first = await domain.say(ann, conversation_id, "one")
        await domain.say(ann, conversation_id, "two")
        reply = (await domain.nodes(first.response.message_id))[-1]

    before, after = engine.jobs
    assert before.history is None
    assert after.history is not None
    assert after.history.token_ids == before.token_ids + reply.token_ids
    assert after.history.boot_id == CARD.boot_id
    assert after.history.head_end == before.zones[1].end
    assert not after.history.forked


async def test_a_turn_that_leaves_the_leaf_says_so(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        root = await domain.respond(ann, "root")
        await domain.ended(ann, root)
        for text in ("left", "right"):
            await domain.ended(ann, await domain.respond(ann, text, root))

    assert [job.history and job.history.forked for job in engine.jobs] == [None, False, True]


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(CARD, model_fingerprint="other"),
        msgspec.structs.replace(CARD, template_fingerprint="other"),
    ],
    ids=["model", "template"],
)
async def test_03_a_changed_model_or_template_renders_the_path_once(
    db: Database, changed: ModelCard
):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation_id = await a_conversation(domain, ann)
        first = await domain.say(ann, conversation_id, "one")
        engine.card = changed
        engine.rendered.clear()
        second = await domain.say(ann, conversation_id, "two")
        await domain.say(ann, conversation_id, "three")
        nodes = await domain.nodes(second.response.message_id)

    compiled, whole, only_new = engine.rendered
    assert compiled.messages == DEFAULT_PERSONA.messages
    texts = [message.text for message in whole.messages]
    assert whole.seam is Seam.START
    assert texts == [DEFAULT_PERSONA.instructions, "one", first.text, "two"]
    assert [message.text for message in only_new.messages] == ["three"]
    old, job, later = engine.jobs
    assert job.history is not None
    assert job.history.token_ids[: len(old.token_ids)] == old.token_ids
    assert (job.history.model_fingerprint, job.history.template_fingerprint) == (
        CARD.model_fingerprint,
        CARD.template_fingerprint,
    )
    assert later.token_ids[: len(job.token_ids)] == job.token_ids
    assert {node.model_fingerprint for node in nodes} == {changed.model_fingerprint}
    assert [node.text for node in nodes] == ["one", first.text, "two", second.text]


async def test_a_template_that_is_not_stable_is_rendered_whole_each_time(db: Database):
    engine = EchoEngine(with_template(stable=False))
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation_id = await a_conversation(domain, ann)
        for text in ("one", "two", "three"):
            await domain.say(ann, conversation_id, text)

    assert [len(request.messages) for request in engine.rendered] == [2, 4, 6]
    assert {request.seam for request in engine.rendered} == {Seam.START}
    assert all(job.zones[1].source is CacheSource.PERSONA for job in engine.jobs)


async def test_03_a_head_is_rendered_anew_for_new_conversations_where_it_tells_the_time(
    db: Database,
):
    clock = TemplateFault(kind=TemplateFaultKind.CLOCK, words="it prints the date")
    finding = TemplateFinding(stability=Stability.APPENDABLE, faults=(clock,))
    engine = EchoEngine(msgspec.structs.replace(CARD, template=finding))
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        for _ in range(2):
            conversation_id = await a_conversation(domain, ann)
            for text in ("one", "two", "three"):
                await domain.say(ann, conversation_id, text)

    seams = [request.seam for request in engine.rendered]
    assert seams == [Seam.START, Seam.CLOSED, Seam.STOPPED, Seam.STOPPED] * 2


async def test_a_head_that_was_sent_before_is_sent_again_as_it_was(db: Database):
    """A template may write the date into its opening: what was sent yesterday stays."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation_id = await a_conversation(domain, ann)
        await domain.say(ann, conversation_id, "one")
    async with open_domain(db, engine) as restarted:
        engine.rendered.clear()
        await restarted.say(ann, conversation_id, "two")

    assert [request.seam for request in engine.rendered] == [Seam.STOPPED]
