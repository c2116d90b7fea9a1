"""Calls of functions: the form that a template has for them, and replies that are held to it."""

import copy
import functools
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from engine.api import (
    CallForm,
    CallGrammar,
    Function,
    JsonGrammar,
    Message,
    OwnerId,
    Rendered,
    RenderRequest,
    Role,
    Sampling,
    Seam,
)
from engine.errors import InvalidGrammar, InvalidJob
from engine.model.grammar import SCHEMA_CHARACTERS, Followers, Grammars
from engine.model.template import Renderer
from tests.engine.test_grammar import SCHEMAS, run_of, write
from tests.kit.model import encode, loaded_model
from tests.kit.templates import CALLS, MARKS_EARLIER_QUESTIONS, PLAIN

FORM = CallForm(
    opening='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    closing="}\n</tool_call>",
    separator="\n",
)
PLACE = Function(
    name="weather",
    description="Tells the weather.",
    parameters='{"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}},'
    ' "required": ["place"], "additionalProperties": false}',
)
CLOCK = Function(name="clock", parameters='{"type": "object", "additionalProperties": false}')
WORDS = JsonGrammar(
    owner_id=OwnerId("ann"), schema='{"type": "array", "items": {"enum": ["<tool_call>", "b"]}}'
)
TEXTS = st.text(st.sampled_from("abc é\n<>{}"), max_size=12)


@functools.cache
def renderer_of(template: str) -> Renderer:
    tokenizer = copy.copy(loaded_model().tokenizer)
    tokenizer.chat_template = template
    return Renderer(tokenizer, (2,))


def render(*messages: Message, seam: Seam, tools: tuple[Function, ...] = ()) -> Rendered:
    request = RenderRequest(messages=messages, seam=seam, opens_reply=True, tools=tools)
    return renderer_of(CALLS).render(request)


def said(role: Role, text: str) -> Message:
    return Message(role=role, text=text)


# ---------------------------------------------------------------- the template's form


def test_the_form_of_calls_is_found_in_what_the_template_writes():
    assert renderer_of(CALLS).finding.calls == FORM
    assert renderer_of(CALLS).finding.no_calls is None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (PLAIN, "declares no functions"),
        (CALLS.replace("(call.function.arguments | tojson)", "'{}'"), "in no form"),
        (CALLS.replace('\'\\n<tool_call>\\n{"name"', '\'\\n{"name"'), "in no form"),
        (CALLS.replace("m.tool_calls %}\n            {{-", "m.tool_calls[:1] %}{{-"), "one after"),
        (CALLS.replace("'<|im_start|>assistant' }}", "'<|im_start|>caller' }}"), "otherwise than"),
        (CALLS.replace("+ m.content + '\\n</tool", "~ loop.index ~ '\\n</tool"), "what follows"),
        (CALLS.replace("m.role == 'tool' %}", "m.role == 'tool' and tools %}", 1), "what follows"),
        (MARKS_EARLIER_QUESTIONS, "rewrites what was said"),
        ("{{ raise_exception('never') }}", "rewrites what was said"),
    ],
)
def test_a_template_without_such_a_form_says_why(template, words):
    finding = renderer_of(template).finding

    assert finding.calls is None
    assert words in (finding.no_calls or "")


def test_without_a_form_functions_and_what_they_gave_are_refused_with_that():
    renderer = renderer_of(PLAIN)

    for field, messages, tools in (
        ("tools", (said(Role.USER, "a"),), (PLACE,)),
        ("messages", (said(Role.TOOL, "a"),), ()),
    ):
        with pytest.raises(InvalidJob, match="declares no functions") as refused:
            renderer.render(
                RenderRequest(messages=messages, seam=Seam.START, opens_reply=True, tools=tools)
            )
        assert refused.value.field == field


def test_functions_are_declared_at_the_start_only():
    with pytest.raises(InvalidJob, match="at the start only"):
        render(said(Role.USER, "a"), seam=Seam.CLOSED, tools=(PLACE,))


@settings(max_examples=25, deadline=None)
@given(system=st.none() | TEXTS, texts=st.lists(TEXTS, min_size=4, max_size=4))
def test_03_functions_stand_at_the_start_and_what_follows_is_rendered_without_them(system, texts):
    asked, given_one, given_two, thanks = texts
    call = FORM.opening + "clock" + FORM.middle + "{}" + FORM.closing
    rest = (
        said(Role.USER, asked),
        said(Role.ASSISTANT, call + FORM.separator + call),
        said(Role.TOOL, given_one),
        said(Role.TOOL, given_two),
        said(Role.ASSISTANT, "So late."),
        said(Role.USER, thanks),
    )
    heading = () if system is None else (said(Role.SYSTEM, system),)

    whole = render(*heading, *rest, seam=Seam.START, tools=(PLACE, CLOCK))

    start = whole.ends[0] if heading else whole.opening_end
    assert whole.token_ids[start:] == render(*rest, seam=Seam.CLOSED).token_ids
    tail = whole.token_ids[whole.ends[len(heading) + 1] :]
    assert tail == render(*rest[2:], seam=Seam.CLOSED).token_ids


def test_what_opens_with_functions_ends_where_the_first_message_begins():
    whole = render(said(Role.USER, "Now?"), seam=Seam.START, tools=(CLOCK,))

    opening = renderer_of(CALLS).vocabulary.whole.decode(
        list(whole.token_ids[: whole.opening_end]), skip_special_tokens=False
    )
    assert '"name": "clock"' in opening
    assert opening.endswith("<|im_end|>\n")


def test_a_declared_function_cannot_spell_a_special_token():
    odd = Function(
        name="odd",
        description="ends <|im_end|> here",
        parameters=json.dumps({"type": "object", "properties": {"<|im_start|>": {}}}),
    )

    plain = render(said(Role.USER, "a"), seam=Seam.START, tools=(CLOCK,)).token_ids
    whole = render(said(Role.USER, "a"), seam=Seam.START, tools=(odd,)).token_ids

    for special in (1, 2):
        assert whole.count(special) == plain.count(special)


# ---------------------------------------------------------------- replies that are held to it


@pytest.fixture(scope="module")
def loaded():
    return loaded_model()


@pytest.fixture(scope="module")
def grammars(loaded):
    return Grammars(loaded)


def grammar(*functions: Function, **changes: Any) -> CallGrammar:
    return CallGrammar(owner_id=OwnerId("ann"), form=FORM, functions=functions, **changes)


def mask_after(grammars: Grammars, wanted: CallGrammar, text: str) -> Any:
    loaded = loaded_model()
    followers = Followers(grammars, loaded.vocabulary_tokens)
    run = run_of(wanted, encode(loaded, text))
    return followers.masks([run])[run.job_id]


def is_allowed(grammars: Grammars, wanted: CallGrammar, text: str) -> bool:
    return not isinstance(mask_after(grammars, wanted, text), InvalidGrammar)


def may_end(grammars: Grammars, wanted: CallGrammar, text: str) -> bool:
    mask = mask_after(grammars, wanted, text)
    ends = list(loaded_model().eos_token_ids)
    return not isinstance(mask, InvalidGrammar) and bool(mask[ends].all())


def call(name: str, arguments: str) -> str:
    return FORM.opening + name + FORM.middle + arguments + FORM.closing


ROME = call("weather", '{"place": "Rome"}')
NOW = call("clock", "{}")


def test_a_reply_is_text_or_calls_with_or_without_text_before_them(grammars):
    wanted = grammar(PLACE, CLOCK)

    for whole in ("", "It is late. {<tool", ROME, f"I look.\n{ROME}", f"{ROME}\n{NOW}"):
        assert may_end(grammars, wanted, whole), whole
    for begun in ("<tool_call>", f"{ROME}\n", ROME[:-3], f"{ROME}\n<tool_call>"):
        assert is_allowed(grammars, wanted, begun), begun
        assert not may_end(grammars, wanted, begun), begun
    for wrong in (
        "a <tool_call> b",
        call("other", "{}"),
        call("clock", '{"place": "Rome"}'),
        call("weather", '{"place": "Paris"}'),
        f"{ROME} And so on.",
        f"{ROME}{NOW}",
    ):
        assert not is_allowed(grammars, wanted, wrong), wrong


def test_a_required_call_comes_first_and_one_call_may_be_all(grammars):
    required, one = grammar(PLACE, required=True), grammar(PLACE, CLOCK, several=False)

    assert may_end(grammars, required, f"{ROME}\n{ROME}")
    assert not is_allowed(grammars, required, "I look.")
    assert not may_end(grammars, required, "")
    assert may_end(grammars, one, f"I look.\n{ROME}")
    assert not is_allowed(grammars, one, f"{ROME}\n")


def test_with_a_schema_a_reply_is_what_it_allows_or_calls_and_nothing_before_them(grammars):
    wanted = grammar(PLACE, CLOCK, says=WORDS)

    for whole in ("[]", '["<tool_call>"]', '["b", "b"]', ROME, f"{ROME}\n{NOW}"):
        assert may_end(grammars, wanted, whole), whole
    for begun in ("", "[", '["<tool', "<tool_call>", ROME[:-3]):
        assert is_allowed(grammars, wanted, begun), begun
        assert not may_end(grammars, wanted, begun), begun
    for wrong in (
        "Well.",
        "{}",
        '["c"]',
        f"[]{ROME}",
        f"I look.\n{ROME}",
        call("other", "{}"),
        call("weather", "[]"),
    ):
        assert not is_allowed(grammars, wanted, wrong), wrong


def test_without_functions_no_call_begins(grammars):
    none = grammar()

    assert may_end(grammars, none, "Say <tool_ or call>, not both.")
    assert not is_allowed(grammars, none, "So: <tool_call>")


@settings(max_examples=25, deadline=None)
@given(SCHEMAS, st.tuples(st.sampled_from(["", "I look.\n"]), st.integers(0, 99)))
def test_whatever_the_model_wants_a_call_that_it_begins_is_valid(loaded, grammars, schema, drawn):
    before, seed = drawn
    parameters = {
        "type": "object",
        "properties": {"it": schema},
        "required": ["it"],
        "additionalProperties": False,
    }
    noisy = Function(name="noisy", parameters=json.dumps(parameters), strict=True)
    followers = Followers(grammars, loaded.vocabulary_tokens)
    begun = encode(loaded, before + "<tool_call>")

    output = write(
        followers,
        loaded,
        run_of(grammar(noisy, several=False), begun, sampling=Sampling(), seed=seed),
    )

    assume(output[-1] in loaded.eos_token_ids)
    text = loaded.tokenizer.decode(output[:-1])
    made = text.removeprefix(before + FORM.opening + "noisy" + FORM.middle)
    assert made.endswith(FORM.closing)
    jsonschema.validate(json.loads(made.removesuffix(FORM.closing)), parameters)


@pytest.mark.parametrize("special", [True, False])
def test_marks_that_are_tokens_of_their_own_are_written_as_these(loaded, special):
    tokenizer = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    marks = [AddedToken(one, special=special) for one in ("<tool_call>", "</tool_call>")]
    tokenizer.add_tokens(marks)
    wider = copy.copy(loaded)
    other = copy.copy(loaded.tokenizer)
    other._tokenizer = tokenizer
    object.__setattr__(wider, "tokenizer", other)
    object.__setattr__(wider, "vocabulary_tokens", tokenizer.get_vocab_size())
    followers = Followers(Grammars(wider), wider.vocabulary_tokens)
    end = list(loaded.eos_token_ids)

    def mask(wanted: CallGrammar, text: str) -> Any:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        followers.masks([])
        return followers.masks([run_of(wanted, ids)])["job"]  # type: ignore[index]

    (opened,) = tokenizer.encode("<tool_call>", add_special_tokens=False).ids
    assert mask(grammar(CLOCK), f"Well.\n{NOW}\n{NOW}")[end].all()
    assert mask(grammar(CLOCK), "Well.")[opened]
    assert isinstance(mask(grammar(CLOCK), "<tool_call> and so on"), InvalidGrammar)
    assert not mask(grammar(), "Well.")[opened]
    assert mask(grammar(CLOCK, says=WORDS), "")[[*end, opened]].tolist() == [False] * len(end) + [
        True
    ]
    assert mask(grammar(CLOCK, says=WORDS), '["b"]')[end].all()
    assert mask(grammar(CLOCK, required=True), "")[[*end, opened]].tolist() == [False] * len(
        end
    ) + [True]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ({"parameters": "{"}, "'it' the schema is not JSON"),
        ({"parameters": '{"type": "array"}'}, "'it' are no object"),
        ({"parameters": '{"properties": {"a": {"type": "bogus"}}}'}, "bogus"),
        ({"parameters": '{"properties": {"a": {"uniqueItems": true}}}', "strict": True}, "unique"),
        ({"parameters": '{"title": "' + "x" * SCHEMA_CHARACTERS + '"}'}, "characters"),
    ],
)
def test_a_function_that_cannot_be_held_to_is_refused_with_the_words_of_its_fault(
    grammars, function, words
):
    with pytest.raises(InvalidGrammar, match=words):
        grammars.compile(grammar(Function(name="it", **function)))
