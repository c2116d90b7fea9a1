"""The load driver against a real server, and the tables that are made of what it heard."""

import msgspec
import psutil
import pytest

from benchmarks.against import Comparison
from benchmarks.client import Failed, Target, ask
from benchmarks.load import Run, Shape, moves, run, summarise, trace_gaps, usual_gaps
from benchmarks.peers import Memory, launches
from benchmarks.plots import PLOTS, draw
from benchmarks.results import FIGURES, Result, Sample, best_peer, ratios, table
from benchmarks.rows import ROWS, Sizes
from benchmarks.texts import message, text
from tests.kit.forked import FORKED
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
NOISY = ("session", "others")
"""Figures that may be nothing at all."""
SMALL = Memory(slots=8, slot_tokens=512)


def target(server: Server, **changes: object) -> Target:
    return msgspec.structs.replace(Target(url=f"{server.url}/v1", key=server.api_key), **changes)


@pytest.mark.parametrize("stores", [False, True])
async def test_every_turn_edit_and_regeneration_is_counted_and_computes_only_what_is_new(
    server, stores
):
    done = await run(target(server, stores=stores), SHAPE, f"counted {stores}")

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


def a_result() -> Result:
    """Two rounds of three servers: Keepwarm is twice as good as the second, whatever the unit."""
    samples = []
    for figure, of_figure in FIGURES.items():
        for size in (100, 2000) if "{}" in of_figure.words else (None,):
            for server, worse in (("Keepwarm", 1.0), ("Second", 2.0), ("Third", 3.0)):
                for number in range(2):
                    base = 10.0 * (number + 1)
                    value = base / worse if of_figure.rises else base * worse
                    samples.append(
                        Sample(figure=figure, size=size, server=server, round=number, value=value)
                    )
    return Result(
        machine="two cores",
        date="today",
        commit="abc",
        model="small",
        options={},
        servers=["Keepwarm", "Second", "Third"],
        samples=samples,
    )


@pytest.mark.long
async def test_two_real_servers_are_compared_on_every_row_and_end_with_it(monkeypatch):
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    few = msgspec.structs.replace(SHAPE, edits=0.0, regenerations=0.0, reply_tokens=4)
    sizes = Sizes(
        rounds=1,
        warm_up=few,
        prefills=(40,),
        streams=(1, 2),
        decode_tokens=4,
        histories=(40, 60),
        colds=(40,),
        chats=few,
        apart=msgspec.structs.replace(few, turns=1, shared=False),
    )
    kept: list[int] = []
    comparison = Comparison("test", lambda so_far: kept.append(len(so_far.samples)))
    FORKED.begin()
    others = set(psutil.Process().children(recursive=True))

    await comparison.compare(list(launches(SMALL, "KEEPWARM_THREADS=1")), sizes, ROWS)

    measured = {(one.figure, one.server) for one in comparison.samples}
    figures = {figure for figure in FIGURES if not figure.startswith("tight")}
    assert measured == {(figure, name) for figure in figures for name in comparison.servers}
    assert comparison.servers == ["Keepwarm", "Transformers"]
    assert all(one.value > 0 for one in comparison.samples if one.figure not in NOISY)
    assert len(kept) == sizes.rounds
    assert not comparison.faults
    assert set(psutil.Process().children(recursive=True)) == others


def test_keepwarm_is_compared_with_itself_set_otherwise():
    first, other, *_ = launches(SMALL, "", "KEEPWARM_THREADS=1,KEEPWARM_PARK_DISK=0")

    assert (first.name, other.name) == ("Keepwarm", "Keepwarm THREADS=1,PARK_DISK=0")
    assert other.environment["KEEPWARM_PARK_DISK"] == "0"
    assert "KEEPWARM_PARK_DISK" not in first.environment


def test_a_ratio_is_taken_within_a_round_and_above_one_is_better():
    result = a_result()

    assert best_peer(result, "decode", 100) == best_peer(result, "later", None) == "Second"
    assert ratios(result, "decode", 100, "Third") == pytest.approx([3.0, 3.0])
    assert ratios(result, "later", None, "Third") == pytest.approx([3.0, 3.0])


def test_a_table_has_a_row_for_each_figure_and_size_and_a_column_for_each_server():
    lines = table(a_result()).splitlines()

    assert len(lines) == 2 + len(FIGURES) + sum("{}" in one.words for one in FIGURES.values())
    assert "| Keepwarm | Second | Third |" in lines[0]
    assert lines[2].startswith("| prefill of 100 tokens | tok/s | 15 | 7.5 (2.00x) | 5 (3.00x) |")
    assert "**2.00x** (2.00 to 2.00), Second" in lines[2]


def test_those_of_one_weight_format_are_compared_among_themselves_too():
    result = a_result()
    dense = [
        msgspec.structs.replace(one, server="Keepwarm WEIGHTS=dtype", value=one.value / 1.5)
        for one in result.samples
        if one.server == "Keepwarm"
    ]
    result = msgspec.structs.replace(
        result,
        servers=[*result.servers, "Keepwarm WEIGHTS=dtype"],
        samples=[*result.samples, *dense],
        weights={
            "Keepwarm": "4-bit",
            "Second": "4-bit",
            "Third": "bf16",
            "Keepwarm WEIGHTS=dtype": "bf16",
        },
    )

    heads, _, first, *_ = table(result).splitlines()

    assert "| Keepwarm against the best | both in 4-bit | both in bf16 |" in heads
    any_format, of_four, of_sixteen = first.split(" | ")[-4:-1]
    assert any_format == of_four == "**2.00x** (2.00 to 2.00), Second"
    assert of_sixteen == "**2.00x** (2.00 to 2.00), Third"


def test_a_peer_that_was_not_there_leaves_its_cells_empty():
    result = a_result()
    alone = [one for one in result.samples if one.server == "Keepwarm" or one.figure == "later"]
    result = msgspec.structs.replace(result, samples=alone)

    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table(result).splitlines()}

    assert "tok/s | 15 |  |  |  | 1.2x |" in rows["sessions: reply tokens"]
    assert "2.00x" in rows["sessions: first token of later turns"]


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_drawn_twice_the_same(name, tmp_path):
    pytest.importorskip("matplotlib")
    result = msgspec.json.decode(msgspec.json.encode(a_result()), type=Result)

    written = draw(result, name, tmp_path)
    once = [path.read_bytes() for path in written]
    draw(result, name, tmp_path)

    assert [path.suffix for path in written] == [".png", ".svg"]
    assert [path.read_bytes() for path in written] == once
    assert not draw(msgspec.structs.replace(result, samples=[]), name, tmp_path)
