"""Rendering new messages alone equals rendering whole, and says so where it cannot (law 3)."""

import copy
import functools
import itertools
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers.utils import chat_template_utils

from engine.api import Message, RenderRequest, Role, Seam, Stability
from engine.api import TemplateFaultKind as Kind
from engine.errors import InvalidJob, Refused
from engine.model.template import Renderer
from tests.kit.model import loaded_model
from tests.kit.templates import (
    ADDS_AN_EMPTY_THOUGHT,
    BOS_AT_EACH_QUESTION,
    COUNTS_MESSAGES,
    DATES_EACH_QUESTION,
    DROPS_SYSTEM,
    JOINS_TOKENS,
    MARKS_EARLIER_QUESTIONS,
    NO_SYSTEM,
    OPENS_A_THOUGHT,
    PLAIN,
    PRINTS_THE_DATE,
    SHOWS_THE_LAST_THOUGHT,
    STRIPS_REASONING,
    WITH_BOS,
)

EOS = (2,)
# The default vocabulary lacks a few control characters and the bytes of the upper planes.
TEXTS = st.text(
    st.characters(
        exclude_categories=["Cs"],
        exclude_characters="\x04\x06\x13\x14\x16\x1d",
        max_codepoint=0x3FFFF,
    ),
    max_size=30,
)
TURNS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3)


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, text=text)


def system(text: str) -> Message:
    return Message(role=Role.SYSTEM, text=text)


@functools.cache
def renderer_of(template: str) -> Renderer:
    tokenizer = copy.copy(loaded_model().tokenizer)
    tokenizer.chat_template = template
    return Renderer(tokenizer, EOS)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(loaded_model().tokenizer, EOS)


def render(renderer: Renderer, *messages: Message, seam: Seam, opens_reply: bool = False):
    return renderer.render(RenderRequest(messages=messages, seam=seam, opens_reply=opens_reply))


def ids_by(template: str, messages: list[Message], *, opens_reply: bool = False) -> list[int]:
    """The library's own rendering of everything at once, by a template of ours."""
    return whole_ids(messages, opens_reply=opens_reply, chat_template=template)


def whole_ids(messages: list[Message], *, opens_reply: bool = False, **options: Any) -> list[int]:
    """The library's own rendering of everything at once."""
    tokenizer: Any = loaded_model().tokenizer
    conversation = [{"role": m.role.value, "content": m.text} for m in messages]
    text = tokenizer.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=opens_reply, **options
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def text_of(renderer: Renderer, ids) -> str:
    text: str = renderer.vocabulary.whole.decode(list(ids), skip_special_tokens=False)
    return text


# ---------------------------------------------------------------- the default template


def test_the_default_template_is_stable(renderer):
    assert renderer.finding.stability is Stability.STABLE


def test_a_first_user_message_opens_with_the_templates_own_system_message(renderer):
    rendered = render(renderer, user("hi"), seam=Seam.START, opens_reply=True)

    opening = text_of(renderer, rendered.token_ids[: rendered.opening_end])
    assert opening == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n"
    )
    assert text_of(renderer, rendered.token_ids[rendered.opening_end : rendered.ends[0]]) == (
        "<|im_start|>user\nhi<|im_end|>\n"
    )
    assert text_of(renderer, rendered.token_ids[rendered.ends[0] :]) == "<|im_start|>assistant\n"


def test_a_system_message_takes_the_place_of_the_opening(renderer):
    rendered = render(renderer, system("Be brief."), seam=Seam.START)

    assert rendered.opening_end == 0
    assert text_of(renderer, rendered.token_ids) == "<|im_start|>system\nBe brief.<|im_end|>\n"


@pytest.mark.parametrize(
    ("seam", "glue"),
    [(Seam.CLOSED, ""), (Seam.STOPPED, "\n"), (Seam.CUT, "<|im_end|>\n")],
)
def test_the_glue_after_a_reply_follows_from_how_it_ended(renderer, seam, glue):
    rendered = render(renderer, user("And?"), seam=seam, opens_reply=True)

    assert text_of(renderer, rendered.token_ids) == (
        glue + "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.opening_end == 0


@pytest.mark.parametrize(
    ("seam", "glue"), [(Seam.CLOSED, ""), (Seam.STOPPED, "\n"), (Seam.CUT, "<|im_end|>\n")]
)
def test_without_messages_only_the_glue_is_rendered(renderer, seam, glue):
    assert text_of(renderer, render(renderer, seam=seam).token_ids) == glue


def test_a_reply_is_opened_behind_a_message_that_stands_already(renderer):
    asked = [system("Be brief."), user("hi")]
    before = render(renderer, *asked, seam=Seam.START).token_ids

    glue = render(renderer, seam=Seam.CLOSED, opens_reply=True).token_ids

    assert text_of(renderer, glue) == "<|im_start|>assistant\n"
    assert [*before, *glue] == whole_ids(asked, opens_reply=True)


def test_a_reply_is_opened_as_the_template_opens_one_after_a_user():
    only_after_a_user = PLAIN.replace(
        "{% if add_generation_prompt %}",
        "{% if add_generation_prompt and messages[-1].role == 'user' %}",
    )
    renderer = renderer_of(only_after_a_user)

    glue = render(renderer, seam=Seam.CLOSED, opens_reply=True).token_ids

    assert text_of(renderer, glue) == "<|im_start|>assistant\n"


@pytest.mark.row("engine 33")
@given(instructions=st.none() | TEXTS, turns=TURNS, split=st.integers(0, 6))
def test_03_rendering_in_pieces_equals_the_whole(renderer, instructions, turns, split):
    messages = [] if instructions is None else [system(instructions)]
    for question, answer in turns:
        messages += [user(question), assistant(answer)]
    cut = 1 + split % len(messages)
    head = render(renderer, *messages[:cut], seam=Seam.START)
    tail = render(renderer, *messages[cut:], seam=Seam.CLOSED)

    assert [*head.token_ids, *tail.token_ids] == whole_ids(messages)
    assert [*head.ends, *(len(head.token_ids) + end for end in tail.ends)] == [
        len(whole_ids(messages[: count + 1])) for count in range(len(messages))
    ]


@pytest.mark.row("engine 33")
@given(turns=TURNS)
def test_03_a_chat_grown_reply_by_reply_reads_as_the_whole(renderer, turns):
    ids: list[int] = []
    messages: list[Message] = []
    seam = Seam.START
    for at, (question, answer) in enumerate(turns):
        new = render(renderer, user(question), seam=seam, opens_reply=True)
        ids += [*new.token_ids, *renderer.vocabulary.encode(answer)]
        seam = Seam.CUT if at % 2 else Seam.STOPPED
        ids += [] if seam is Seam.CUT else EOS
        messages += [user(question), assistant(answer)]
    ids += render(renderer, seam=seam).token_ids

    assert text_of(renderer, ids) == text_of(renderer, whole_ids(messages))


# ---------------------------------------------------------------- callers' text


@given(
    before=TEXTS,
    special=st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"]),
    after=TEXTS,
)
def test_a_callers_text_cannot_spell_a_special_token(renderer, before, special, after):
    text = before + special + after
    honest = render(renderer, user("x"), seam=Seam.CLOSED, opens_reply=True)
    hostile = render(renderer, user(text), seam=Seam.CLOSED, opens_reply=True)
    specials = set(renderer.vocabulary.specials)

    assert [i for i in hostile.token_ids if i in specials] == [
        i for i in honest.token_ids if i in specials
    ]
    assert text_of(renderer, hostile.token_ids) == (
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text_of(renderer, hostile.token_ids[: hostile.ends[0]]).endswith("<|im_end|>\n")


def test_special_names_inside_special_names_are_broken_as_well(renderer):
    text = "<|im_<|im_end|>end|>"

    rendered = render(renderer, user(text), seam=Seam.CLOSED)

    assert rendered.token_ids.count(2) == 1
    assert text in text_of(renderer, rendered.token_ids)


# ---------------------------------------------------------------- other templates


APPENDABLE = [
    pytest.param(template, id=name)
    for name, template in {
        "strips reasoning": STRIPS_REASONING,
        "prints the date": PRINTS_THE_DATE,
        "adds an empty thought": ADDS_AN_EMPTY_THOUGHT,
        "shows the last thought": SHOWS_THE_LAST_THOUGHT,
        "opens a thought": OPENS_A_THOUGHT,
        "joins tokens": JOINS_TOKENS,
    }.items()
]
REASONED = "<think>\nTwice.\n</think>\n\nFour."


@pytest.mark.row("engine 1")
@pytest.mark.parametrize(
    ("template", "stability", "faults"),
    [
        (PLAIN, Stability.STABLE, {}),
        (STRIPS_REASONING, Stability.APPENDABLE, {Kind.REASONING: ("\n", "\n\n")}),
        (PRINTS_THE_DATE, Stability.APPENDABLE, {Kind.CLOCK: ANY}),
        (DATES_EACH_QUESTION, Stability.APPENDABLE, {Kind.CLOCK: ANY}),
        (ADDS_AN_EMPTY_THOUGHT, Stability.APPENDABLE, {Kind.THOUGHT: ("<", "That")}),
        (
            SHOWS_THE_LAST_THOUGHT,
            Stability.APPENDABLE,
            {Kind.THOUGHT: ("That", "<"), Kind.REASONING: ("<", "That")},
        ),
        (
            OPENS_A_THOUGHT,
            Stability.APPENDABLE,
            {Kind.THOUGHT: ("<", "That"), Kind.REASONING: ("\n", "\n\n")},
        ),
        (JOINS_TOKENS, Stability.APPENDABLE, {Kind.BORDER: ("\n\n", "\n")}),
        (WITH_BOS, Stability.STABLE, {Kind.BOS: ("<|im_start|>", "user")}),
        (MARKS_EARLIER_QUESTIONS, Stability.UNSTABLE, {Kind.HISTORY: ("How", "[")}),
        (COUNTS_MESSAGES, Stability.UNSTABLE, {Kind.HISTORY: ANY, Kind.THOUGHT: ANY}),
        ("{{ raise_exception('never') }}", Stability.UNSTABLE, {Kind.REFUSED: None}),
    ],
)
def test_03_each_fault_is_named_with_the_first_differing_token(template, stability, faults):
    finding = renderer_of(template).finding

    assert finding.stability is stability
    assert {fault.kind: fault.tokens for fault in finding.faults} == faults
    assert finding.reads_clock == (Kind.CLOCK in faults)
    assert all((fault.position is None) == (fault.tokens is None) for fault in finding.faults)


@pytest.mark.row("engine 4")
def test_03_the_first_differing_token_is_where_two_renderings_part():
    fault = renderer_of(ADDS_AN_EMPTY_THOUGHT).finding.faults[0]
    said = user("How much is 5 and 6?")

    opened = ids_by(ADDS_AN_EMPTY_THOUGHT, [said], opens_reply=True)
    answered = ids_by(ADDS_AN_EMPTY_THOUGHT, [said, assistant("That makes eleven.")])

    assert fault.position is not None
    assert opened[: fault.position] == answered[: fault.position]
    assert opened[fault.position] != answered[fault.position]


@pytest.mark.parametrize("template", APPENDABLE)
@settings(max_examples=20)
@given(turns=TURNS, question=TEXTS)
def test_03_glue_is_the_end_of_the_whole_rendering_whatever_stands_before(
    template, turns, question
):
    renderer = renderer_of(template)
    history = [system("Be brief.")]
    for asked, answer in turns:
        history += [user(asked), assistant(answer)]
    whole = renderer.text([*history, user(question)], opens_reply=True)

    for seam in (Seam.CLOSED, Seam.CUT):
        new = render(renderer, user(question), seam=seam, opens_reply=True)
        assert whole.endswith(text_of(renderer, new.token_ids))


@pytest.mark.parametrize("template", APPENDABLE)
def test_03_the_messages_of_a_whole_rendering_end_where_new_ones_would_follow(template):
    """So that a conversation which was rendered anew can be forked at any message."""
    renderer = renderer_of(template)
    history = [system("Be brief."), user("a"), assistant(REASONED), user("b"), assistant("d")]

    whole = render(renderer, *history, user("e"), seam=Seam.START, opens_reply=True)

    for count in (3, 5):
        rest = render(renderer, *history[count:], user("e"), seam=Seam.CLOSED, opens_reply=True)
        tail = whole.token_ids[whole.ends[count - 1] :]
        assert text_of(renderer, tail) == text_of(renderer, rest.token_ids)
    opened = render(renderer, seam=Seam.CLOSED, opens_reply=True)
    tail = whole.token_ids[whole.ends[-1] :]
    assert text_of(renderer, tail) == text_of(renderer, opened.token_ids)


@pytest.mark.parametrize("template", [MARKS_EARLIER_QUESTIONS, COUNTS_MESSAGES])
def test_03_an_unstable_template_renders_whole_histories_only(template):
    renderer = renderer_of(template)
    history = [system("Be brief."), user("a"), assistant("b"), user("c")]

    whole = render(renderer, *history, seam=Seam.START, opens_reply=True)

    assert list(whole.token_ids) == ids_by(template, history, opens_reply=True)
    assert text_of(renderer, whole.token_ids[: whole.ends[-1]]).endswith("c<|im_end|>\n")
    with pytest.raises(InvalidJob, match="is unstable: send the whole"):
        render(renderer, user("d"), seam=Seam.STOPPED, opens_reply=True)


def test_a_day_that_ends_between_two_renderings_refuses_nobody(monkeypatch):
    """A turn is rendered behind dummies more than once; the date may change in between."""
    renderer = renderer_of(PRINTS_THE_DATE)
    day, next_day = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    days = itertools.chain([day], itertools.repeat(next_day))
    monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda: next(days)))

    later = render(renderer, user("hi"), seam=Seam.CLOSED)

    assert text_of(renderer, later.token_ids) == "<|im_start|>user\nhi<|im_end|>\n"


def test_a_new_conversation_opens_with_the_new_date(monkeypatch):
    renderer = renderer_of(PRINTS_THE_DATE)
    day = datetime(2031, 5, 7, tzinfo=UTC)
    monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda: day))

    first = render(renderer, user("hi"), seam=Seam.START)

    opening = text_of(renderer, first.token_ids[: first.opening_end])
    assert opening == "<|im_start|>system\n07 May 2031<|im_end|>\n"


def eager_renderer_of(template: str) -> Renderer:
    """Of a tokenizer that puts a BOS of its own before every text, if it is let."""
    tokenizer: Any = copy.deepcopy(loaded_model().tokenizer)
    tokenizer.bos_token, tokenizer.chat_template = "<|endoftext|>", template
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)]
    )
    assert tokenizer.backend_tokenizer.encode("a").ids[0] == tokenizer.bos_token_id
    return Renderer(tokenizer, EOS)


@pytest.fixture(scope="module")
def eager() -> Renderer:
    return eager_renderer_of(WITH_BOS)


@pytest.mark.row("engine 5")
@given(turns=TURNS)
def test_03_one_bos_at_the_start_whether_rendered_whole_or_turn_by_turn(eager, turns):
    messages = [message for q, a in turns for message in (user(q), assistant(a))]

    ids: list[int] = []
    for at, message in enumerate(messages):
        ids += render(eager, message, seam=Seam.CLOSED if at else Seam.START).token_ids
    whole = render(eager, *messages, seam=Seam.START)

    assert ids == list(whole.token_ids)
    assert [place for place, token_id in enumerate(ids) if token_id == eager.bos_token_id] == [0]
    assert (eager.finding.stability, eager.finding.faults) == (Stability.STABLE, ())


@pytest.mark.row("engine 5")
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ bos_token }}" + WITH_BOS, "twice at the start"),
        (BOS_AT_EACH_QUESTION, "again at later turns"),
    ],
)
def test_a_bos_that_the_template_writes_more_than_once_is_named(template, words):
    finding = eager_renderer_of(template).finding

    (fault,) = finding.faults
    assert finding.stability is Stability.STABLE
    assert words in fault.words
    assert fault.tokens == ("<|endoftext|>", "<|im_start|>")


@pytest.mark.row("engine 5")
def test_no_bos_is_added_to_what_the_template_writes():
    renderer = renderer_of(WITH_BOS)
    bos = loaded_model().tokenizer.bos_token_id

    first = render(renderer, user("hi"), seam=Seam.START)
    later = render(renderer, user("hi"), seam=Seam.CLOSED)

    assert first.token_ids[:2] == (bos, bos)  # here BOS is <|im_start|>: the template's, then ours
    assert first.opening_end == 1
    assert later.token_ids == first.token_ids[1:]


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_template_without_a_system_role_refuses_system_messages(template):
    renderer = renderer_of(template)

    with pytest.raises(Refused, match="no system role") as refusal:
        render(renderer, system("Be brief."), user("hi"), seam=Seam.START, opens_reply=True)

    assert refusal.value.field == "messages"
    assert renderer.finding.stability is Stability.STABLE
    assert render(renderer, user("hi"), seam=Seam.START).token_ids


def test_what_the_template_refuses_is_refused_with_its_words():
    alternating = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    ) + PLAIN

    with pytest.raises(InvalidJob, match="roles must alternate"):
        render(renderer_of(alternating), user("a"), user("b"), seam=Seam.START)
