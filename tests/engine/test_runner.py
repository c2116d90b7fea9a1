"""Plans made by hand on the real model in float32, against stock `generate`, token for token."""

import random

import pytest
import torch

from engine.api import Sampling
from engine.config import EngineConfig
from engine.errors import Corrupt
from engine.model.load import LoadedModel
from engine.model.runner import ModelRunner
from engine.step import BlockId, Copy
from tests.kit.model import Hand, Line, encode, generate, loaded_model, model_config

STORY_TEXT = (
    "Once upon a time, in a harbour town of 1,400 people, a lamplighter named Ada kept a list of "
    "every lamp she had ever lit. One evening the list was gone. She asked the baker, the notary "
    "and the harbour master, and each of them told her a different story about where it went."
)
LETTER_TEXT = (
    "Dear council, the water in the eastern well tastes of iron since last spring. We ask you"
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return loaded_model()


@pytest.fixture(scope="module")
def story(loaded: LoadedModel) -> list[int]:
    return encode(loaded, STORY_TEXT)


@pytest.fixture(scope="module")
def letter(loaded: LoadedModel) -> list[int]:
    return encode(loaded, LETTER_TEXT)


@pytest.fixture
def hand(loaded: LoadedModel) -> Hand:
    return Hand(ModelRunner(loaded, model_config()))


def test_the_model_agrees_with_its_own_attention_at_warm_up(hand):
    hand.runner.warm_up()


def test_a_greedy_reply_equals_generate(hand, loaded, story):
    reply = Line(story, range(20)).decode(hand, 40)

    assert reply == generate(loaded, story, 40)


@pytest.mark.parametrize("chunk", [1, 5, 16, 23])
def test_a_prompt_in_chunks_equals_generate(hand, chunk, loaded, story):
    line = Line(story, range(20))
    while line.computed + chunk < len(story):
        hand.step(line.run(tokens=chunk))

    assert line.decode(hand, 12) == generate(loaded, story, 12)


def test_a_second_turn_computes_only_what_is_new_and_equals_generate(hand, loaded, story, letter):
    first = Line(story, range(30))
    reply = first.decode(hand, 10)
    turn = [*story, *reply, *letter]
    # The last token that was drawn has no KV yet: it is computed with the new turn.
    second = Line(turn, first.table, computed=len(story) + 9)

    assert len(second.token_ids) - second.computed == len(letter) + 1
    assert second.decode(hand, 20) == generate(loaded, turn, 20)


def test_the_order_of_physical_blocks_is_invisible(hand, loaded, story):
    scattered = list(range(256))
    random.Random(7).shuffle(scattered)  # noqa: S311

    assert Line(story, scattered).decode(hand, 30) == generate(loaded, story, 30)


def test_a_fork_in_mid_block_goes_its_own_way(hand, loaded, story, letter):
    shared = 37
    trunk = Line(story, range(10))
    trunk_reply = trunk.decode(hand, 5)
    branch_ids = [*story[:shared], *letter]
    branch = Line(branch_ids, [0, 1, 99, *range(40, 50)], computed=shared)

    (token_id,) = hand.step(
        branch.run(), copies=[Copy(source=BlockId(2), target=BlockId(99), slots=shared % 16)]
    )

    assert [token_id] == generate(loaded, branch_ids, 1)
    assert [*trunk_reply, *trunk.decode(hand, 5)] == generate(loaded, story, 10)


def test_prefill_and_decodes_in_one_step_equal_each_alone(hand, loaded, story, letter):
    prompts = [story, letter, story[:20], letter[:7], [*letter, *story]]
    lines = [Line(ids, range(at * 40, at * 40 + 40)) for at, ids in enumerate(prompts)]
    late = lines.pop()
    for line in lines:
        line.decode(hand, 3)

    for chunk in (30, 30, None, None, None):
        drawn = hand.step(*(line.run() for line in lines), late.run(tokens=chunk))
        for line, token_id in zip([*lines, late], drawn, strict=True):
            line.token_ids += [] if token_id is None else [token_id]

    for line in [*lines, late]:
        prompt = line.token_ids[: line.prompt_tokens]
        assert line.output_ids == generate(loaded, prompt, len(line.output_ids))


def test_a_reused_block_shows_nothing_of_its_past(hand, loaded, story, letter):
    Line(story, range(20)).decode(hand, 20)
    hand.step(wipes=range(4))

    reply = Line(letter, [3, 1, *range(4, 20)]).decode(hand, 20)

    assert reply == generate(loaded, letter, 20)


def test_07_a_slot_that_was_never_written_is_found(hand, story):
    line = Line(story, range(20), computed=10)

    with pytest.raises(Corrupt):
        line.decode(hand, 1)


def test_a_wiped_block_is_zero_without_test_mode(loaded, story):
    config = EngineConfig(data_dir=model_config().data_dir, kv_memory_bytes=32 << 20)
    hand = Hand(ModelRunner(loaded, config))
    Line(story, range(10)).decode(hand, 1)

    hand.step(wipes=[0, 1])

    assert torch.count_nonzero(hand.runner.pool.keys(3)[:32]) == 0
    assert torch.count_nonzero(hand.runner.pool.keys(3)[32:48]) > 0


def test_bfloat16_over_the_pool_stays_near_float32(loaded, story):
    served = loaded_model("bfloat16")
    exact = loaded.reference_logits(story).log_softmax(-1)
    hand = Hand(ModelRunner(served, model_config(dtype="bfloat16")))
    line = Line(story, range(20))
    hand.step(line.run(tokens=40))

    best = hand.drawn(line.run(sampling=Sampling(temperature=0, logprobs=20)))

    # Two best tokens closer than rounding may swap; every one of them keeps its odds.
    assert all(abs(logprob - float(exact[token_id])) < 0.15 for token_id, logprob in best.top[:5])
