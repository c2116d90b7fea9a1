"""Calls in a reply's text, and turns that declare functions and bring what they gave."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.asked import AnswerFormat, Choice, Tools
from app.chat.calls import (
    Argued,
    Begun,
    Call,
    CallReader,
    Ended,
    Piece,
    Said,
    Written,
    call_id,
    in_order,
    is_never_in_json,
    spelled,
    written,
)
from app.chat.entry import TurnRequest, grammar_of
from app.chat.library import DEFAULT_PERSONA, Access, Text
from app.db.base import Database
from app.db.types import ItemKind, Visibility
from app.errors import InvalidRequest, NotFound
from app.ids import new_user_id
from engine.api import (
    OPERATOR_SCOPE,
    CacheSource,
    CallGrammar,
    Function,
    JobClass,
    Message,
    OwnerId,
    Rendered,
    RenderRequest,
    Role,
    Scope,
    Seam,
)
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import CALL_FORM as FORM
from tests.kit.echo import OPEN, EchoEngine, text_of, with_calls

WEATHER = Function(name="weather", description="Tells the weather.")
TIDE = Function(name="tide")
TOOLS = Tools(functions=(WEATHER, TIDE), form=FORM)
OWN = Access(visibility=Visibility.OWNER)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[]<é/>', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('k"}', max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
CALLED = st.builds(
    lambda name, arguments: Call(name=name, arguments=msgspec.json.encode(arguments).decode()),
    st.sampled_from(["weather", "tide", "a-b_c"]),
    st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2),
)
REPLIES = st.builds(
    lambda text, calls: Written(text=text, calls=tuple(calls)),
    st.text("ab \n<tool_call>{", max_size=20).filter(lambda text: FORM.opening not in text),
    st.lists(CALLED, max_size=3),
)


def joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one kind as one."""
    out: list[Piece] = []
    for piece in pieces:
        match out[-1] if out else None, piece:
            case Said(text=before), Said(text=after):
                out[-1] = Said(text=before + after)
            case Argued(arguments=before), Argued(arguments=after):
                out[-1] = Argued(arguments=before + after)
            case _:
                out.append(piece)
    return out


# ---------------------------------------------------------------- text to calls


@given(REPLIES, st.data())
def test_calls_are_read_as_they_were_spelled_however_the_text_is_cut(reply: Written, data: Any):
    text = spelled(reply, FORM)[: data.draw(st.integers(0, 400))]
    borders = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    whole, cut = CallReader(FORM), CallReader(FORM)

    at_once = [*whole.feed(text), *whole.end()]
    bit_by_bit: list[Piece] = []
    for start, end in zip([0, *borders], [*borders, len(text)], strict=True):
        bit_by_bit += cut.feed(text[start:end])
    bit_by_bit += cut.end()

    assert joined(bit_by_bit) == joined(at_once)
    if text == spelled(reply, FORM) and reply.calls:
        read = written(text, FORM)
        assert read.calls == reply.calls
        assert read.text.removesuffix(FORM.separator) == reply.text.removesuffix(FORM.separator)
        assert spelled(read, FORM) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hm <tool", [Said(text="Hm <tool")]),
        ("Hm <tool_call> no", [Said(text="Hm <tool_call> no")]),
        (
            '<tool_call>\n{"name": "tide", "arguments": {"a": "}',
            [Begun(name="tide"), Argued(arguments='{"a": "}'), Ended(is_whole=False)],
        ),
        (
            '<tool_call>\n{"name": "tide", "arguments": {}}\n</tool',
            [Begun(name="tide"), Argued(arguments="{}"), Ended(is_whole=False)],
        ),
        ('<tool_call>\n{"name": "ti', []),
    ],
)
def test_what_is_cut_is_told_as_far_as_it_came(text: str, pieces: list[Piece]):
    reader = CallReader(FORM)

    assert joined([*reader.feed(text), *reader.end()]) == pieces


def test_outputs_are_put_in_the_order_of_their_calls():
    one, two = (Message(role=Role.TOOL, text=text) for text in ("one", "two"))

    assert in_order((two, one), ("b", "a"), ("a", "b"), "input") == (one, two)


@pytest.mark.parametrize(
    ("named", "code"),
    [
        (("a", "c"), "call_not_found"),
        (("a", "a"), "call_not_found"),
        (("a",), "call_not_answered"),
    ],
)
def test_each_call_is_answered_once_and_nothing_else_is(named: tuple[str, ...], code: str):
    results = tuple(Message(role=Role.TOOL, text=name) for name in named)

    with pytest.raises(InvalidRequest) as refused:
        in_order(results, named, ("a", "b"), "input")

    assert (refused.value.code, refused.value.field) == (code, "input")


@pytest.mark.parametrize(
    ("changes", "names", "required", "several"),
    [
        ({}, ["weather", "tide"], False, True),
        ({"choice": Choice.NONE}, [], False, True),
        ({"choice": Choice.REQUIRED}, ["weather", "tide"], True, True),
        ({"choice": Choice.REQUIRED, "named": "tide"}, ["tide"], True, False),
        ({"choice": Choice.REQUIRED, "allowed": ("tide",)}, ["tide"], True, True),
        ({"allowed": ("tide", "weather")}, ["weather", "tide"], False, True),
        ({"parallel": False}, ["weather", "tide"], False, False),
    ],
)
def test_what_is_asked_for_is_what_the_grammar_holds_to(
    changes: dict[str, Any], names: list[str], required: bool, several: bool
):
    user_id = new_user_id()

    grammar = msgspec.structs.replace(TOOLS, **changes).grammar(user_id)

    assert grammar == CallGrammar(
        owner_id=OwnerId(user_id),
        form=FORM,
        functions=tuple(one for one in TOOLS.functions if one.name in names),
        required=required,
        several=several,
    )


FORMAT = AnswerFormat(name="it", schema='{"type": "array"}', strict=True)


@pytest.mark.parametrize("choice", list(Choice))
def test_an_answer_of_a_format_follows_that_or_calls(choice: Choice):
    user_id = new_user_id()
    tools = msgspec.structs.replace(TOOLS, choice=choice)
    says = FORMAT.grammar(user_id)

    grammar = grammar_of(user_id, TurnRequest(messages=(), tools=tools, format=FORMAT))

    assert grammar == (says if choice is Choice.NONE else tools.grammar(user_id, says))


@pytest.mark.parametrize(
    ("opening", "never"),
    [
        (FORM.opening, True),
        ('[TOOL_CALLS] [{"name": "', True),
        ("<call>\n", True),
        ("<function=", False),
        ('[{"name": "', False),
        ('<call name="', False),
    ],
)
def test_what_opens_a_call_may_be_something_that_json_never_holds(opening: str, *, never: bool):
    assert is_never_in_json(opening) == never


# ---------------------------------------------------------------- turns


def calling(*calls: str) -> EchoEngine:
    """Its answers call these."""
    engine = EchoEngine(with_calls())
    reply = Written(text="", calls=tuple(Call(name=name, arguments="{}") for name in calls))
    engine.says[JobClass.INTERACTIVE] = spelled(reply, FORM)
    return engine


def given_by(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(role=Role.TOOL, text=text) for text in texts)


async def test_functions_lie_in_the_callers_scope_and_before_all_else(db: Database):
    engine = EchoEngine(with_calls())
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        await domain.ended(ann, await domain.respond(ann, "hi", tools=TOOLS))
        told = await domain.respond(ann, "hi", tools=TOOLS, instructions="Be brief.")
        await domain.ended(ann, told)

    own = Scope(f"user:{ann.user_id}")
    bare, instructed = engine.jobs
    for job in (bare, instructed):
        assert [zone.scope for zone in job.zones] == [own]
        assert OPERATOR_SCOPE not in [zone.scope for zone in job.zones]
        assert "weather" in text_of(job.token_ids)
        assert job.grammar == TOOLS.grammar(ann.user_id)
    assert text_of(instructed.token_ids).endswith("Be brief.hi")


async def test_outputs_follow_their_calls_in_their_order_and_only_they_are_rendered(db: Database):
    engine = calling("weather", "tide")
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "hi", tools=TOOLS)
        await domain.ended(ann, first)
        ids = [call_id(first.message_id, place) for place in (1, 0)]
        second = await domain.respond(
            ann,
            "",
            first,
            messages=(*given_by("high", "rain"), Message(role=Role.USER, text="so?")),
            results=tuple(ids),
            tools=TOOLS,
        )
        await domain.ended(ann, second)

    before, after = engine.jobs
    new = engine.rendered[-1]
    assert [(one.role, one.text) for one in new.messages] == [
        (Role.TOOL, "rain"),
        (Role.TOOL, "high"),
        (Role.USER, "so?"),
    ]
    assert (new.seam, new.tools) == (Seam.STOPPED, ())
    assert after.token_ids[: len(before.token_ids)] == before.token_ids
    assert text_of(after.token_ids).endswith("rainhighso?")


async def refused(domain: Domain, who: Any, *request: Any, **changes: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        await domain.respond(who, *request, **changes)
    return error.value


async def test_outputs_of_unknown_calls_and_calls_without_outputs_are_refused(db: Database):
    engine = calling("weather", "tide")
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "hi", tools=TOOLS)
        await domain.ended(ann, first)
        one = call_id(first.message_id, 0)
        missing = await refused(domain, ann, "", first, messages=given_by("a"), results=(one,))
        unknown = await refused(domain, ann, "", first, messages=given_by("a"), results=("x",))
        nowhere = await refused(domain, ann, "", messages=given_by("a"), results=(one,))

    assert (missing.code, missing.field) == ("call_not_answered", "input")
    assert (unknown.code, unknown.field) == ("call_not_found", "input")
    assert nowhere.code == "call_not_found"
    assert len(engine.jobs) == 1


class SystemFirst(EchoEngine):
    """Tells of functions behind the system's words, as templates do."""

    async def render(self, request: RenderRequest) -> Rendered:
        if not request.tools or request.messages[0].role is not Role.SYSTEM:
            return await super().render(request)
        plain = await super().render(msgspec.structs.replace(request, tools=()))
        alone = await super().render(msgspec.structs.replace(request, messages=()))
        end, told = plain.ends[0], alone.token_ids[1:]
        return msgspec.structs.replace(
            plain,
            token_ids=(*plain.token_ids[:end], *told, *plain.token_ids[end:]),
            ends=tuple(one + len(told) for one in plain.ends),
        )


async def test_11_under_a_persona_its_words_are_the_operators_and_all_else_is_the_callers(
    db: Database,
):
    engine = SystemFirst(with_calls())
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        rivers = Text(name="Rivers", text="The Nile.")
        made = await domain.library.create(ann.user_id, ItemKind.DOCUMENT, rivers, OWN)
        first = await domain.respond(
            ann,
            "hi",
            persona_id=DEFAULT_PERSONA.id,
            document_ids=(made.summary.id,),
            tools=TOOLS,
        )
        await domain.ended(ann, first)
        await domain.ended(ann, await domain.respond(ann, "again", first, tools=TOOLS))
        await domain.ended(ann, await domain.respond(ann, "plain", first))

    one, two, plain = engine.jobs
    own = Scope(f"user:{ann.user_id}")
    for job in (one, two):
        template, words, rest = job.zones
        assert (template.scope, template.source) == (OPERATOR_SCOPE, CacheSource.TEMPLATE)
        assert (words.scope, words.source) == (OPERATOR_SCOPE, CacheSource.PERSONA)
        assert rest.scope == own
        assert text_of(job.token_ids[: words.end]) == DEFAULT_PERSONA.instructions
        assert plain.token_ids[: words.end] == job.token_ids[: words.end]
        behind = text_of(job.token_ids[words.end :])
        assert behind.index("weather") < behind.index("The Nile.") < behind.index("hi")
    assert two.token_ids[: len(one.token_ids)] == one.token_ids
    assert "weather" not in text_of(plain.token_ids)


async def test_19_functions_open_no_persona_that_one_may_not_read(db: Database):
    engine = EchoEngine(with_calls())
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        bob = await new_person(db)
        pirate = Text(name="Pirate", text="Arr.")
        made = await domain.library.create(ann.user_id, ItemKind.PERSONA, pirate, OWN)
        with pytest.raises(NotFound):
            await domain.respond(bob, "hi", persona_id=made.summary.id, tools=TOOLS)

    assert engine.jobs == []


async def test_other_functions_are_another_head_and_the_path_keeps_its_ids(db: Database):
    engine = EchoEngine(with_calls())
    fewer = msgspec.structs.replace(TOOLS, functions=(TIDE,))
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "hi", tools=TOOLS)
        await domain.ended(ann, first)
        second = await domain.respond(ann, "again", first, tools=fewer)
        await domain.ended(ann, second)

    one, two = engine.jobs
    assert "weather" not in text_of(two.token_ids)
    assert text_of(two.token_ids).endswith("again")
    start = one.token_ids.index(OPEN[Role.USER])
    body = one.token_ids[start:]
    at = two.token_ids.index(OPEN[Role.USER])
    assert two.token_ids[at : at + len(body)] == body


async def test_after_a_change_of_the_model_functions_stand_in_the_head_alone(db: Database):
    engine = EchoEngine(with_calls())
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "hi", tools=TOOLS)
        await domain.ended(ann, first)
        engine.card = msgspec.structs.replace(engine.card, model_fingerprint="another")
        second = await domain.respond(ann, "again", first, tools=TOOLS)
        await domain.ended(ann, second)
        third = await domain.respond(ann, "plain", second)
        await domain.ended(ann, third)

    one, two, three = engine.jobs
    assert two.token_ids[: len(one.token_ids)] == one.token_ids
    assert "weather" not in text_of(three.token_ids)


async def test_what_may_be_called_is_kept_with_the_response(db: Database):
    engine = EchoEngine(with_calls())
    asked = msgspec.structs.replace(TOOLS, choice=Choice.REQUIRED, named="tide", parallel=False)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hi", tools=asked)
        await domain.ended(ann, response)
        found = await domain.supervisor.response(ann, response.id)

    assert found.asked.tools == asked
