"""A model shared by two ranks, processes that sum by Gloo, says what it says whole."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio
import torch
from safetensors import safe_open

from engine.api import Delta, JobId, Limits, Sampling
from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.figures import CacheChange
from engine.model.load import load
from engine.model.ranks import Ranks
from engine.remote import RemoteEngine
from tests.kit.engines import (
    Chat,
    Outcome,
    a_config,
    a_job,
    first_prompt,
    fork_remote,
    play,
    share_made,
)
from tests.kit.random_model import random_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = ("Name ten animals.", "Where does the lamplighter live, and why?", "Count to nine.")
LONG = " ".join(QUESTIONS * 5)
CLOSE = 1e-4
"""How far log-probabilities may be apart in float32: sums of two halves round otherwise."""
CLOSE_IN_FP8 = 0.1


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return random_model(tmp_path_factory.mktemp("model"))


def config_of(model: str, ranks: int, **changes: object) -> EngineConfig:
    config = a_config(model=model, kernels="torch", tensor_parallel=ranks, kv_memory_bytes=3 << 20)
    return msgspec.structs.replace(config, **changes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(model):
    async with fork_remote(config_of(model, 1)) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model):
    async with fork_remote(config_of(model, 2)) as engine:
        yield engine


async def said(engine: RemoteEngine, **changes: Any) -> list[Outcome]:
    """Several answers at once, long ones, all of their events."""
    prompts = [await first_prompt(engine, question) for question in QUESTIONS]
    limits = Limits(max_output_tokens=40, ignore_eos=True)
    jobs = [a_job(prompt, limits=limits, **changes) for prompt in prompts]
    return list(await asyncio.gather(*(play(engine, job) for job in jobs)))


def lasting(engine: RemoteEngine) -> list[psutil.Process]:
    """The engine's process and its followers."""
    assert engine.pid is not None
    first = psutil.Process(engine.pid)
    return [first, *first.children()]


def meeting_of(follower: psutil.Process) -> Path:
    """The folder that the ranks found each other in."""
    return Path(follower.cmdline()[-2]).parent


def is_there(folder: Path) -> bool:
    return folder.exists()


async def test_two_ranks_say_what_one_says(whole, shared):
    expected, found = await said(whole), await said(shared)

    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert len({one.token_ids for one in found}) == len(QUESTIONS)


async def test_ranks_listen_on_this_machine_alone(shared):
    await said(shared)

    addresses = {
        connection.laddr.ip
        for process in lasting(shared)
        for connection in process.net_connections("inet")
    }
    assert addresses == {"127.0.0.1"}


async def test_two_ranks_give_the_probabilities_that_one_gives(whole, shared):
    sampling = Sampling(temperature=0.0, logprobs=5)
    expected, found = await said(whole, sampling=sampling), await said(shared, sampling=sampling)

    pairs = list(zip(logprobs(found), logprobs(expected), strict=True))
    assert len(pairs) == 6 * 40 * len(QUESTIONS)
    assert {ours for (ours, _), _ in pairs} == {theirs for _, (theirs, _) in pairs}
    assert max(abs(ours - theirs) for (_, ours), (_, theirs) in pairs) < CLOSE


@pytest.mark.long
async def test_two_ranks_keep_kv_in_fp8_as_one_does(model):
    """What a sum's last bit moves over a border of fp8 is moved by a sixteenth."""
    sampling = Sampling(temperature=0.0, logprobs=5)
    told, cards = [], []
    for ranks in (1, 2):
        async with fork_remote(config_of(model, ranks, kv_dtype="fp8")) as engine:
            told.append(await said(engine, sampling=sampling))
            cards.append(await engine.info())

    expected, found = told
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    pairs = zip(logprobs(found), logprobs(expected), strict=True)
    assert max(abs(ours - theirs) for (_, ours), (_, theirs) in pairs) < CLOSE_IN_FP8
    assert cards[1].kv_bytes_per_token == cards[0].kv_bytes_per_token
    assert cards[1].dtype == "float32, KV in float8_e4m3fn"


async def test_two_ranks_compute_only_what_is_new(shared):
    chat = Chat(shared)
    await chat.say("Name ten animals.")
    known = len(chat.token_ids)

    receipt = (await chat.say("Any more?")).receipt

    assert receipt.cached_tokens >= known - 1
    assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens


async def test_what_is_kept_counts_for_all_ranks(whole, shared):
    one, two = await whole.info(), await shared.info()

    assert two.kv_bytes_per_token == one.kv_bytes_per_token
    assert two.pool_blocks == 2 * one.pool_blocks  # each rank gives the same memory
    assert two.model_fingerprint == one.model_fingerprint
    assert (one.device, two.device) == ("cpu", "2 x cpu")


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(0, id="the first rank", marks=pytest.mark.long),
        pytest.param(1, id="its follower"),
    ],
)
async def test_13_an_answer_goes_on_when_a_rank_is_killed(shared, victim):
    job = a_job(
        await first_prompt(shared, QUESTIONS[1]),
        limits=Limits(max_output_tokens=60, ignore_eos=True),
    )
    undisturbed = await play(shared, job)
    lost = lasting(shared)
    assert len(lost) == 2
    folder = meeting_of(lost[1])
    assert is_there(folder)

    events = []
    async for event in shared.generate(msgspec.structs.replace(job, job_id=JobId("disturbed"))):
        events.append(event)
        if len(events) == 9:
            lost[victim].send_signal(signal.SIGKILL)

    disturbed = Outcome(events=tuple(events))
    assert disturbed.token_ids == undisturbed.token_ids
    assert disturbed.sent_ids == undisturbed.sent_ids
    _, alive = psutil.wait_procs(lost, timeout=60)
    assert not alive
    assert not is_there(folder)
    assert lasting(shared)[0].pid != lost[0].pid


async def test_what_is_parked_is_restored_where_it_is_whole_on_every_rank(model, whole, tmp_path):
    share_made(tmp_path)
    config = config_of(model, 2, data_dir=tmp_path, disk_bytes=1 << 30)
    async with fork_remote(config) as engine:
        chats = [Chat(engine, owner=owner) for owner in ("ann", "bob")]
        for chat in chats:
            await chat.say(LONG)
    known = [len(chat.token_ids) for chat in chats]
    ours, theirs = tmp_path / "parked", tmp_path / "parked-rank-1"
    assert names(ours) == names(theirs)
    emptied = 0
    for name in names(theirs):
        if owner_of(ours / name) == "bob":
            (theirs / name).write_bytes(b"")
            emptied += 1

    async with fork_remote(config) as engine:
        refused = (await engine.stats()).segments[CacheChange.DAMAGED]
        for chat in chats:
            chat.engine = engine
        ann, bob = [await chat.say("And then?") for chat in chats]
    expected = await play(whole, a_job(chats[0].token_ids[: ann.receipt.prompt_tokens]))

    assert refused == emptied > 0
    assert ann.receipt.cached_tokens >= known[0] - 1
    assert ann.token_ids == expected.token_ids
    assert bob.receipt.cached_by_source.session == 0
    assert names(ours) == names(theirs)


async def test_what_more_ranks_left_is_let_go(model, tmp_path):
    share_made(tmp_path)
    left = tmp_path / "parked-rank-1"
    left.mkdir()

    async with fork_remote(config_of(model, 1, data_dir=tmp_path, disk_bytes=1 << 30)):
        assert not left.exists()


async def test_heads_that_cannot_be_shared_evenly_are_refused_with_the_figures(model):
    with pytest.raises(Misconfigured, match="tensor_parallel is 3: the model's 4 KV heads"):
        load(config_of(model, 3), ranks=Ranks(0, 3))


async def test_more_ranks_than_devices_are_refused_with_the_figures():
    with pytest.raises(Misconfigured, match=r"tensor_parallel is 99: this machine has \d+ GPUs"):
        Ranks(0, 99).device(torch.device("cuda"))


async def test_native_kernels_are_refused_to_ranks():
    with pytest.raises(Misconfigured, match="kernels is 'native': they know whole models only"):
        a_config(tensor_parallel=2, kernels="native")


async def test_a_rank_that_cannot_start_ends_the_start_with_its_words(model):
    with pytest.raises(Misconfigured, match="kv_memory_bytes is"):
        async with fork_remote(config_of(model, 2, block_tokens=1 << 20)):
            pass


def logprobs(outcomes: list[Outcome]) -> list[tuple[int, float]]:
    """Of each token the chosen one and the best five, told by their ids."""
    found: list[tuple[int, float]] = []
    for outcome in outcomes:
        for event in outcome.events:
            for one in event.logprobs if isinstance(event, Delta) else ():
                top = sorted(one.top, key=lambda token: token.token_id)
                found += [(token.token_id, token.logprob) for token in (one.chosen, *top)]
    return found


def names(folder: Path) -> set[str]:
    found = {file.name for file in folder.glob("*.safetensors")}
    assert found
    return found


def owner_of(file: Path) -> str:
    with safe_open(file, framework="pt") as opened:
        owner: str = msgspec.json.decode(opened.metadata()["head"])["owner_id"]
    return owner
