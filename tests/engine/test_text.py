"""Incremental text against decoding whole, and stop strings at every token border."""

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from engine.model.text import TextStream, Vocabulary
from tests.kit.model import loaded_model

# The default vocabulary lacks a few control characters and the bytes of the upper planes.
TEXTS = st.text(
    st.characters(
        exclude_categories=["Cs"],
        exclude_characters="\x04\x06\x13\x14\x16\x1d",
        max_codepoint=0x3FFFF,
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(loaded_model().tokenizer)


def stream(vocabulary: Vocabulary, token_ids, *stop: str, lengths=None) -> tuple[str, TextStream]:
    """Feed ids in portions; the text that came out and the stream."""
    text_stream = TextStream(vocabulary, stop)
    sizes = iter(lengths or [])
    text, at = "", 0
    while at < len(token_ids):
        size = next(sizes, 1)
        text += text_stream.feed(token_ids[at : at + size])
        at += size
    return text + text_stream.flush(), text_stream


# ---------------------------------------------------------------- plain text


def test_11_no_word_of_a_text_is_remembered():
    """Whoever sends another's words would have them encoded sooner: here, as they were before."""
    vocabulary = Vocabulary(copy.deepcopy(loaded_model().tokenizer))  # it is spoilt below
    tokenizers = (vocabulary.whole, vocabulary._plain)
    before = [one.encode("quagga", add_special_tokens=False).ids for one in tokenizers]

    for one in tokenizers:
        one.model.continuing_subword_prefix = "##"
    after = [one.encode("quagga", add_special_tokens=False).ids for one in tokenizers]

    assert all(new != old for new, old in zip(after, before, strict=True))


@given(text=TEXTS)
def test_text_comes_back_as_it_was(vocabulary, text):
    token_ids = vocabulary.encode(text)

    assert stream(vocabulary, token_ids)[0] == text
    assert vocabulary.decode(token_ids) == text


@given(token_ids=st.lists(st.integers(0, 49_151), max_size=60))
def test_pieces_of_any_ids_concatenate_to_what_the_tokenizer_decodes(vocabulary, token_ids):
    tokenizer: Any = loaded_model().tokenizer
    whole = tokenizer.decode(
        token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )

    assert stream(vocabulary, token_ids)[0] == whole


def test_half_a_character_is_never_sent(vocabulary):
    token_ids = vocabulary.encode("naïve 👋🏽 日本語 — ça")
    text_stream = TextStream(vocabulary)

    pieces = [text_stream.feed([token_id]) for token_id in token_ids]

    assert "�" not in "".join(pieces)
    assert "".join(pieces) == "naïve 👋🏽 日本語 — ça"
    assert text_stream.flush() == ""


def test_a_character_that_never_ends_is_replaced_at_the_end(vocabulary):
    token_ids = vocabulary.encode("ok 👋")[:-1]

    text, _ = stream(vocabulary, token_ids)

    assert text == vocabulary.decode(token_ids)
    assert text.endswith("�")


def test_special_tokens_have_no_text_and_a_name(vocabulary):
    assert stream(vocabulary, [1, *vocabulary.encode("hi"), 2])[0] == "hi"
    assert vocabulary.token_text(2) == "<|im_end|>"


@given(text=TEXTS, special=st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>"]))
def test_plain_text_never_becomes_a_special_token(vocabulary, text, special):
    token_ids = vocabulary.encode(text + special + text)

    assert not set(token_ids) & set(vocabulary.specials)
    assert vocabulary.decode(token_ids) == text + special + text


def test_a_vocabulary_that_is_not_byte_level_streams_as_well():
    pieces = ["<unk>", "▁He", "llo", "▁w", "<0xC3>", "<0xB6>", "rld", "<0xFF>", "!"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    vocabulary = Vocabulary(_WithBackend(backend))

    for token_ids in ([1, 2, 3, 4, 5, 6], [3, 4, 1], [7, 8, 2], [1, 4]):
        assert stream(vocabulary, token_ids)[0] == backend.decode(token_ids)
    text_stream = TextStream(vocabulary)
    assert [text_stream.feed([token_id]) for token_id in (3, 4, 5)] == [" w", "", "ö"]


class _WithBackend:
    """A tokenizer as the vocabulary sees one."""

    chat_template: str | None = None
    eos_token_id: int | None = None
    bos_token_id: int | None = None

    def __init__(self, backend: Any) -> None:
        self.backend_tokenizer = backend

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError("a vocabulary renders no template")


# ---------------------------------------------------------------- stop strings


@example(text=" aa", stop=["a", " aa"], lengths=[])
@given(
    text=st.text("abé👋 ", max_size=30),
    stop=st.lists(st.text("abé👋 ", min_size=1, max_size=4), min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 4), max_size=8),
)
def test_text_ends_before_the_first_stop_string_however_it_is_fed(vocabulary, text, stop, lengths):
    ends = [(text.find(one) + len(one), text.find(one)) for one in stop if one in text]
    expected = text[: min(ends)[1]] if ends else text

    sent, text_stream = stream(vocabulary, vocabulary.encode(text), *stop, lengths=lengths)

    assert sent == expected
    assert text_stream.is_stopped == bool(ends)
    assert vocabulary.decode(text_stream.kept_ids) == expected


def test_what_may_become_a_stop_string_is_held_and_then_sent(vocabulary):
    text_stream = TextStream(vocabulary, ["\n\nUser:"])

    held = text_stream.feed(vocabulary.encode("Yes.\n\n"))
    sent = text_stream.feed(vocabulary.encode("No."))

    assert held == "Yes."
    assert sent == "\n\nNo."


def test_tokens_before_the_stop_are_kept_as_they_were_drawn(vocabulary):
    token_ids = [*vocabulary.encode("one two"), *vocabulary.encode(" STOP and more")]

    _, text_stream = stream(vocabulary, token_ids, " STOP")

    assert text_stream.kept_ids == vocabulary.encode("one two")


def test_a_stop_inside_a_token_keeps_the_rest_of_it_re_encoded(vocabulary):
    token_ids = vocabulary.encode("a wonderful day")
    assert len(token_ids) == 3

    sent, text_stream = stream(vocabulary, token_ids, "erful")

    assert sent == "a wond"
    assert text_stream.kept_ids == (token_ids[0], *vocabulary.encode(" wond"))


def test_overshoot_after_a_stop_string_is_ignored(vocabulary):
    text_stream = TextStream(vocabulary, ["."])

    sent = text_stream.feed(vocabulary.encode("Yes. And so on."))

    assert (sent, text_stream.feed(vocabulary.encode(" More")), text_stream.flush()) == (
        "Yes",
        "",
        "",
    )
    assert text_stream.kept_ids == vocabulary.encode("Yes")


@given(text=st.text("abé👋 ", max_size=30), cut=st.integers(0, 40))
def test_a_resumed_stream_sends_exactly_what_was_not_sent(vocabulary, text, cut):
    token_ids, stop = vocabulary.encode(text), ["ab a", "👋👋"]
    undisturbed, _ = stream(vocabulary, token_ids, *stop)
    before = TextStream(vocabulary, stop)
    sent = before.feed(token_ids[:cut])

    resumed = TextStream(vocabulary, stop)
    resumed.resume(token_ids[:cut])

    assert sent + resumed.feed(token_ids[cut:]) + resumed.flush() == undisturbed
