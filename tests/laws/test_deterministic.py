"""The deterministic mode: warm equals cold bit for bit, whatever runs beside it (law 6)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import Delta, Forget, Job, Limits, Sampling, Subject, SubjectKind
from engine.config import PREFIX_INDEXES, EngineConfig
from engine.figures import CacheChange
from tests.kit.desk import Desk, config
from tests.kit.engines import Chat, Outcome, a_config, open_local, play, share_made
from tests.kit.paper import EOS_TOKEN_ID, answer

EXACT = Sampling(temperature=0.0, logprobs=5)
LIMITS = Limits(max_output_tokens=4, ignore_eos=True)
on_both = pytest.mark.parametrize("index", PREFIX_INDEXES)
LONG = "Tell me a story about " + ", ".join(f"a ship called number {n}" for n in range(12))


def deterministic(folder: Path, **changes: object) -> EngineConfig:
    """Few blocks, real weights in the serving format, a folder of its own."""
    share_made(folder)
    values: dict[str, object] = {
        "blocks": 14,
        "data_dir": folder,
        "dtype": "bfloat16",
        "disk_bytes": 1 << 30,
        "deterministic": True,
    }
    return a_config(**(values | changes))  # type: ignore[arg-type]


def bits(outcome: Outcome) -> list[object]:
    """Every number that came of a turn."""
    deltas = [event for event in outcome.events if isinstance(event, Delta)]
    return [logprobs for delta in deltas for logprobs in delta.logprobs]


async def cold(folder: Path, jobs: Sequence[Job]) -> list[list[object]]:
    """What each turn comes to, alone in an engine that knows nothing."""
    told = []
    async with open_local(deterministic(folder / "cold", disk_bytes=0)) as engine:
        for job in jobs:
            told.append(bits(await play(engine, job)))
            owner = Subject(kind=SubjectKind.OWNER, subject_id="", owner_id=job.owner_id)
            await engine.lease(owner, Forget())
    return told


@pytest.mark.row("engine 30")
async def test_06_warm_is_cold_bit_for_bit_over_forks_evictions_parks_and_restarts(tmp_path):
    """The first life on one index, the second on the other: to what is parked they are one."""
    warm = tmp_path / "warm"
    turns: list[tuple[Job, list[object]]] = []

    async def turn(chat: Chat, text: str) -> None:
        job = await chat.next_job(text, sampling=EXACT, limits=LIMITS)
        turns.append((job, bits(await chat.say(text, sampling=EXACT, limits=LIMITS))))

    async with open_local(deterministic(warm, prefix_index="radix")) as engine:
        chat = Chat(engine)
        noise = [Chat(engine, owner=f"noise-{at}") for at in range(2)]
        await turn(chat, LONG)
        for text in ("And then?", "Who was the captain?"):
            await asyncio.gather(turn(chat, text), *(one.say(text) for one in noise))
        fork = chat.fork()
        await asyncio.gather(turn(chat, "Go on."), turn(fork, "Tell it otherwise."))
        for one in noise:
            await one.say(LONG + LONG)
        await turn(chat, "How does it end?")
        evicted = (await engine.stats()).evicted_blocks
    async with open_local(deterministic(warm, prefix_index="hashed")) as engine:
        chat.engine = fork.engine = engine
        await asyncio.gather(turn(chat, "Is that all?"), turn(fork, "And in short?"))
        stats = await engine.stats()

    assert evicted > 0
    assert stats.segments[CacheChange.RESTORED] > 0
    told = await cold(tmp_path, [job for job, _ in turns])
    for (_, said), alone in zip(turns, told, strict=True):
        assert said == alone


@on_both
async def test_06_only_pieces_of_a_prompt_are_gone_on_from(index, tmp_path):
    async with open_local(deterministic(tmp_path, prefix_index=index)) as engine:
        chat = Chat(engine)
        await chat.say(LONG, limits=LIMITS)
        prompt = len(chat.token_ids) - 4

        receipt = (await chat.say("And then?", limits=LIMITS)).receipt

    assert receipt.cached_tokens == prompt - prompt % 64
    assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens


@on_both
@given(st.data())
@settings(deadline=None, max_examples=50)
def test_06_passes_are_cut_by_the_ids_alone(index, data):
    """On the paper model: whoever runs beside it, a sequence's passes are the same."""
    sizes = {"canonical_tokens": 16, "block_tokens": 8, "pool_blocks": 24, "context_tokens": 160}
    desk = Desk(config(prefix_index=index, **sizes))
    cuts = watch_cuts(desk)
    texts = st.lists(st.integers(2, 3), min_size=1, max_size=90)
    jobs = [
        desk.submit(desk.job(ids, output=data.draw(st.integers(1, 6))))
        for ids in data.draw(st.lists(texts, min_size=1, max_size=6))
    ]

    desk.drain()

    for job in jobs:
        said = desk.ended[job.job_id].token_ids
        assert said == answer(job.token_ids, len(said), (EOS_TOKEN_ID,))
        prompt = len(job.token_ids)
        for start, end in cuts[job.job_id]:
            if start >= prompt:
                assert end == start + 1
            else:
                assert start % 16 == 0
                assert end == min(start + 16, prompt)


def watch_cuts(desk: Desk) -> dict[str, list[tuple[int, int]]]:
    """Where each job's passes begin and end."""
    cuts: dict[str, list[tuple[int, int]]] = {}
    launch = desk.paper.launch

    def launched(plan):
        for run in plan.runs:
            span = (run.start, run.start + len(run.token_ids))
            cuts.setdefault(run.job_id, []).append(span)
        return launch(plan)

    desk.paper.launch = launched  # type: ignore[method-assign]
    return cuts
