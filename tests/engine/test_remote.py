"""An engine's process may die, hang or never start; what was asked of it is answered all the same."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from engine.api import Delta, FinishReason, Job, JsonGrammar, Limits, OwnerId, Sampling
from engine.errors import EngineLost, Misconfigured
from engine.process import EngineProcess
from engine.remote import Care, RemoteEngine
from tests.kit.engines import (
    GREEDY,
    Outcome,
    a_config,
    a_job,
    first_prompt,
    fork_remote,
    open_remote,
    play,
)
from tests.kit.server import POLL_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

CARE = Care(heartbeat_s=0.2, hung_s=8.0, backoff_s=0.0)
"""A step takes no longer than that to be hung, on the busiest machine."""
SEEDED = Sampling(temperature=1.1, top_p=0.95, repetition_penalty=1.1, seed=7)

UNKEPT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
"""Whoever wants much memory asks the system for it, every time: malloc keeps little that was given back."""
LITTLE_BYTES = 1 << 20
"""Less than an engine has already: it is given no more."""

PARENT = """
import asyncio
from tests.kit.engines import a_config
from engine.remote import RemoteEngine

async def main():
    engine = await RemoteEngine.open(a_config())
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    async with fork_remote(care=CARE) as engine:
        yield engine


@pytest.mark.parametrize(
    ("question", "sampling", "stop"),
    [
        ("Name ten animals and what they eat.", GREEDY, False),
        ("Tell me a story about a fox.", SEEDED, False),
        ("Name ten animals and what they eat.", GREEDY, True),
    ],
    ids=["greedy", "seeded", "stop string across the cut"],
)
async def test_13_an_answer_cut_by_kill_9_equals_the_undisturbed_one(
    engine, question, sampling, stop
):
    prompt = await first_prompt(engine, question)
    job = a_job(prompt, sampling=sampling, limits=Limits(max_output_tokens=40))
    undisturbed = await play(engine, job)
    if stop:
        # It begins in the last token that arrives before the cut.
        start = len((await play(engine, shortened(job, tokens=8))).text)
        text = undisturbed.text[start : start + 16]
        job = a_job(prompt, limits=Limits(max_output_tokens=40, stop=(text,)))
        undisturbed = await play(engine, job)
        assert undisturbed.finished.reason is FinishReason.STOP
    boot_id = (await engine.info()).boot_id

    disturbed = await play_killing(engine, job, after_tokens=9)

    assert disturbed.text == undisturbed.text
    assert disturbed.token_ids == undisturbed.token_ids
    assert disturbed.finished.reason is undisturbed.finished.reason
    assert disturbed.sent_ids == undisturbed.sent_ids
    assert (await engine.info()).boot_id != boot_id


async def test_13_json_that_is_cut_by_kill_9_goes_on_where_its_grammar_was(engine):
    prompt = await first_prompt(engine, "Name ten animals and what they eat.")
    schema = '{"type": "array", "items": {"type": "string", "minLength": 9}, "minItems": 5}'
    job = a_job(
        prompt,
        grammar=JsonGrammar(owner_id=OwnerId("ann"), schema=schema),
        limits=Limits(max_output_tokens=80),
    )
    undisturbed = await play(engine, job)

    disturbed = await play_killing(engine, job, after_tokens=9)

    assert disturbed.text == undisturbed.text
    assert disturbed.token_ids == undisturbed.token_ids
    assert disturbed.text.startswith('["')


async def test_13_a_cut_through_a_character_neither_loses_nor_doubles_it(engine):
    prompt = await first_prompt(engine, "Repeat these signs five times: 🦊 🐻 漢字 ✅")
    job = a_job(prompt, limits=Limits(max_output_tokens=12))
    undisturbed = await play(engine, job)
    first_text = next(
        i
        for i, event in enumerate(undisturbed.events[1:])
        if isinstance(event, Delta) and event.text
    )

    disturbed = await play_killing(engine, job, after_tokens=first_text)

    assert first_text > 0
    assert disturbed.text == undisturbed.text


async def test_a_job_without_a_seed_goes_on_with_the_stream_it_began(engine):
    prompt = await first_prompt(engine, "Tell me a story about a fox.")
    job = a_job(prompt, sampling=Sampling(temperature=1.0), limits=Limits(max_output_tokens=24))

    restarts = (await engine.stats()).restarts
    outcome = await play_killing(engine, job, after_tokens=6)
    stats = await engine.stats()

    assert stats.boot_id == (await engine.info()).boot_id == outcome.receipt.boot_id
    assert stats.restarts == restarts + 1
    assert outcome.sent_ids == outcome.token_ids
    assert len(outcome.token_ids) == 24 or outcome.finished.reason is FinishReason.STOP


async def test_a_hung_engine_is_replaced_and_its_jobs_go_on(engine):
    prompt = await first_prompt(engine, "Name ten animals and what they eat.")
    job = a_job(prompt, limits=Limits(max_output_tokens=30))
    undisturbed = await play(engine, job)
    hung = process_of(engine)

    outcome = await play_killing(engine, job, after_tokens=5, number=signal.SIGSTOP)

    assert outcome.text == undisturbed.text
    assert not hung.is_running()


@pytest.fixture(autouse=True)
def own_folder(monkeypatch):
    """A place for temporary files that no test beside this one uses; its name is short."""
    with tempfile.TemporaryDirectory(prefix="kw") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


async def test_while_an_engine_keeps_dying_all_are_told_and_then_it_serves_again():
    engines, files = own_engines(), own_files()
    async with open_remote(care=Care(restarts=0, away_s=0.5)) as engine:
        prompt = await first_prompt(engine, "Tell me a story.")
        job = a_job(prompt, limits=Limits(max_output_tokens=200, ignore_eos=True))

        with pytest.raises(EngineLost):
            await play_killing(engine, job, after_tokens=2)
        for call in (engine.stats, engine.info, engine.generate(job).__anext__):
            with pytest.raises(EngineLost):
                await call()
        async with asyncio.timeout(120):
            while engine.pid is None:  # noqa: ASYNC110  what is waited for has no event
                await asyncio.sleep(POLL_S)
        outcome = await play(engine, shortened(job, tokens=3))

    assert len(outcome.token_ids) == 3
    assert (own_engines(), own_files()) == (engines, files)


async def test_an_engine_that_cannot_start_is_tried_until_it_can(monkeypatch):
    """Its files may be on a disk that is away for a while."""
    start, tries = EngineProcess.start, list[str]()

    async def away_twice(config, report):
        if len(tries) < 2:
            tries.append("away")
            raise Misconfigured("the model's file is not there")
        return await start(config, report)

    async with fork_remote(care=Care(backoff_s=0.0)) as engine:
        monkeypatch.setattr(EngineProcess, "start", away_twice)
        process_of(engine).kill()

        assert (await engine.stats()).restarts == 1
        assert len(tries) == 2


async def test_a_job_that_was_in_flight_in_every_lost_engine_is_given_up():
    async with fork_remote(care=Care(losses=1, backoff_s=0.0)) as engine:
        prompt = await first_prompt(engine, "Tell me a story.")
        job = a_job(prompt, limits=Limits(max_output_tokens=200, ignore_eos=True))

        outcome = await play_killing(engine, job, after_tokens=2)

        assert outcome.finished.reason is FinishReason.FAILED
        assert outcome.finished.token_ids == outcome.sent_ids
        assert (await engine.stats()).running_jobs == 0


async def test_a_configuration_that_cannot_work_is_told_by_its_type_and_leaves_nothing():
    before = own_engines()

    with pytest.raises(Misconfigured, match="no-such-model"):
        await RemoteEngine.open(a_config(model="./no-such-model"))

    assert own_engines() == before


def test_an_engine_dies_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        [child] = psutil.Process(parent.pid).children()

        parent.kill()
        _, alive = psutil.wait_procs([child], timeout=60)

    assert not alive


def test_a_parent_that_only_connects_never_loads_torch():
    code = "import sys, engine.connect, engine.remote; print('torch' in sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert loaded.stdout == b"False\n"


async def test_an_answer_that_gets_on_outlives_any_number_of_engines():
    async with fork_remote(care=Care(losses=2, restarts=1, backoff_s=0.0)) as engine:
        prompt = await first_prompt(engine, "Tell me a story.")
        job = a_job(prompt, limits=Limits(max_output_tokens=40, ignore_eos=True))
        undisturbed = await play(engine, job)

        outcome = await play_killing(engine, job, after_tokens=5, strikes=2)
        restarts = (await engine.stats()).restarts

    assert outcome.token_ids == undisturbed.token_ids
    assert restarts == 2


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
async def test_13_an_engine_without_memory_ends_at_once_and_the_answer_goes_on(monkeypatch, caplog):
    for name, value in UNKEPT.items():
        monkeypatch.setenv(name, value)
    # Native kernels have all that they need from the start.
    async with open_remote(a_config(kernels="torch")) as engine:
        job = a_job(await first_prompt(engine, "word " * 900))
        process_of(engine).rlimit(psutil.RLIMIT_DATA, (LITTLE_BYTES, LITTLE_BYTES))

        outcome = await play(engine, job)
        undisturbed = await play(engine, job)
        restarts = (await engine.stats()).restarts

    assert restarts == 1
    assert outcome.token_ids == undisturbed.token_ids
    assert "ended with status" in caplog.text


def shortened(job: Job, *, tokens: int) -> Job:
    return a_job(job.token_ids, limits=Limits(max_output_tokens=tokens))


async def play_killing(
    engine: RemoteEngine,
    job: Job,
    *,
    after_tokens: int,
    number: int = signal.SIGKILL,
    strikes: int = 1,
) -> Outcome:
    """Play a job and strike each of its engines, when so many tokens have arrived of it."""
    events = []
    struck = 0
    async with aclosing(engine.generate(job)) as stream:
        async for event in stream:
            events.append(event)
            deltas = [event for event in events if isinstance(event, Delta)]
            arrived = sum(len(delta.token_ids) for delta in deltas)
            if struck < strikes and arrived >= after_tokens * (struck + 1):
                struck += 1
                process_of(engine).send_signal(number)
    assert struck == strikes
    return Outcome(events=tuple(events))


def own_files() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("keepwarm-*"))


def own_engines() -> set[int]:
    children = psutil.Process().children()
    return {child.pid for child in children if "engine" in child.cmdline()}


def process_of(engine: RemoteEngine) -> psutil.Process:
    assert engine.pid is not None
    return psutil.Process(engine.pid)
