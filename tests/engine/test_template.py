"""Rendering new messages alone equals rendering whole, and says so where it cannot (law 3)."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Message, RenderRequest, Role, Seam
from engine.errors import InvalidJob, Refused
from engine.model.template import Renderer
from tests.kit.model import loaded_model

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

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS_REASONING = PLAIN.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}",
)
PRINTS_THE_DATE = "<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n" + PLAIN
ADDS_AN_EMPTY_THOUGHT = PLAIN.replace(
    "assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
) + PLAIN
DROPS_SYSTEM = PLAIN.replace(
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n",
    "{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}",
)


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, text=text)


def system(text: str) -> Message:
    return Message(role=Role.SYSTEM, text=text)


def renderer_of(template: str) -> Renderer:
    tokenizer = copy.copy(loaded_model().tokenizer)
    tokenizer.chat_template = template
    return Renderer(tokenizer, EOS)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(loaded_model().tokenizer, EOS)


def render(renderer: Renderer, *messages: Message, seam: Seam, opens_reply: bool = False):
    return renderer.render(RenderRequest(messages=messages, seam=seam, opens_reply=opens_reply))


def whole_ids(messages: list[Message], *, opens_reply: bool = False) -> list[int]:
    """The library's own rendering of everything at once."""
    tokenizer: Any = loaded_model().tokenizer
    conversation = [{"role": m.role.value, "content": m.text} for m in messages]
    text = tokenizer.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=opens_reply
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def text_of(renderer: Renderer, ids) -> str:
    text: str = renderer.vocabulary.whole.decode(list(ids), skip_special_tokens=False)
    return text


# ---------------------------------------------------------------- the default template


def test_the_default_template_is_stable(renderer):
    assert renderer.finding.stable


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


@pytest.mark.parametrize(
    ("template", "difference"),
    [
        (STRIPS_REASONING, r"'\n' in one and '\n\n'"),
        (PRINTS_THE_DATE, "and '3' in the other"),
        (ADDS_AN_EMPTY_THOUGHT, "'<' in one and 'It'"),
    ],
)
def test_03_an_unstable_template_is_found_and_its_first_difference_named(template, difference):
    finding = renderer_of(template).finding

    assert not finding.stable
    assert difference in finding.detail


def test_03_an_unstable_template_renders_whole_histories_only():
    renderer = renderer_of(ADDS_AN_EMPTY_THOUGHT)
    history = [system("Be brief."), user("a"), assistant("b"), user("c")]

    whole = render(renderer, *history, seam=Seam.START, opens_reply=True)

    assert text_of(renderer, whole.token_ids).endswith("assistant\n<think>\n\n</think>\n\n")
    assert text_of(renderer, whole.token_ids[: whole.ends[-1]]).endswith("c<|im_end|>\n")
    with pytest.raises(InvalidJob, match="not prefix-stable"):
        render(renderer, user("d"), seam=Seam.STOPPED, opens_reply=True)


def test_exactly_one_bos_is_written_and_only_by_the_template():
    renderer = renderer_of("{{ bos_token }}" + PLAIN.removeprefix("{{ bos_token }}"))
    bos = loaded_model().tokenizer.bos_token_id

    first = render(renderer, user("hi"), seam=Seam.START)
    later = render(renderer, user("hi"), seam=Seam.CLOSED)

    assert renderer.finding.stable
    assert first.token_ids[:2] == (bos, bos)  # here BOS is <|im_start|>: the template's, then ours
    assert first.opening_end == 1
    assert later.token_ids == first.token_ids[1:]


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_template_without_a_system_role_refuses_system_messages(template):
    renderer = renderer_of(template)

    with pytest.raises(Refused, match="no system role") as refusal:
        render(renderer, system("Be brief."), user("hi"), seam=Seam.START, opens_reply=True)

    assert refusal.value.field == "messages"
    assert renderer.finding.stable
    assert render(renderer, user("hi"), seam=Seam.START).token_ids


def test_what_the_template_refuses_is_refused_with_its_words():
    alternating = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    ) + PLAIN

    with pytest.raises(InvalidJob, match="roles must alternate"):
        render(renderer_of(alternating), user("a"), user("b"), seam=Seam.START)
