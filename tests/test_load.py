"""The load driver against a real server, and the tables that are made of what it heard."""

import msgspec
import pytest

from benchmarks.client import Failed, Target, ask
from benchmarks.load import Run, Shape, moves, run, summarise, trace_gaps, usual_gaps
from benchmarks.texts import message, text
from tests.kit.server import Server

SHAPE = Shape(
    sessions=2,
    turns=2,
    concurrency=2,
    system_words=40,
    user_words=8,
    reply_tokens=8,
    edits=1.0,
    regenerations=1.0,
)


def target(server: Server, **changes: str) -> Target:
    return msgspec.structs.replace(Target(url=f"{server.url}/v1", key=server.api_key), **changes)


async def test_every_turn_edit_and_regeneration_is_counted_and_computes_only_what_is_new(server):
    done = await run(target(server), SHAPE, "counted")

    asked = {(one.session, one.turn, one.kind): one.heard for one in done.asked}
    kinds = ("turn", "edit", "regeneration")
    assert set(asked) == {(s, t, kind) for s in range(2) for t in range(2) for kind in kinds}
    for (session, turn, kind), heard in asked.items():
        assert heard.cached_tokens is not None
        assert heard.cached_tokens + heard.computed_tokens == heard.prompt_tokens
        assert heard.output_tokens == SHAPE.reply_tokens
        assert heard.sent_s < heard.pieces_s[0] <= heard.pieces_s[-1] <= heard.ended_s
        if kind == "regeneration":
            assert heard.computed_tokens == 1, "only the last token, to draw from"
            assert heard.prompt_tokens == asked[session, turn, "edit"].prompt_tokens
        elif turn or kind == "edit":
            assert heard.computed_tokens < heard.cached_tokens

    summary = summarise(done)
    assert summary.requests == 12
    assert summary.wrong_lengths == 0
    assert summary.output_tokens == 12 * SHAPE.reply_tokens
    assert summary.cached_tokens is not None
    assert summary.cached_tokens + summary.computed_tokens == summary.prompt_tokens
    assert [row.turn for row in summary.by_turn] == [1, 2]


async def test_a_run_that_is_written_can_be_read_and_summed_up_again(server):
    done = await run(target(server), msgspec.structs.replace(SHAPE, turns=1), "written")

    again = msgspec.json.decode(msgspec.json.encode(done), type=Run)

    assert summarise(again) == summarise(done)


async def test_a_refusal_is_an_error_with_the_servers_words(server):
    with pytest.raises(Failed, match="401"):
        await ask(target(server, key="no key"), [message("user", "Hello.")], 4)


def test_the_same_seed_says_the_same_and_another_differs_from_its_first_words_on():
    shape = msgspec.structs.replace(SHAPE, turns=5, edits=0.5, gaps_s=(1.0, 2.0))

    once, again, other = (list(moves(shape, seed, 1)) for seed in ("one", "one", "other"))

    assert once == again != other
    assert {move.pause_s for move in once[1:]} == {1.0, 2.0}
    assert text("one", 5).split() != text("other", 5).split()


def test_pauses_are_those_of_the_gap_model_or_of_a_trace(tmp_path):
    rows = [{"timestamp": 9000 * at, "input_length": 512, "hash_ids": [0, 1]} for at in range(4)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(msgspec.json.encode(row).decode() for row in rows))

    usual = usual_gaps(0.01)

    assert usual[len(usual) // 2] == pytest.approx(1.58)
    assert list(usual) == sorted(usual)
    assert set(trace_gaps(trace, 2.0)) == {18.0}
