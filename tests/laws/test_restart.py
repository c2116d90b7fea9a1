"""What is parked on disk outlives the engine, on the real model in fp32 (laws 1, 2 and 6)."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from safetensors import safe_open

from engine.api import Limits, MissReason, OwnerId, Park, Receipt, Subject, SubjectKind
from engine.config import PREFIX_INDEXES, EngineConfig
from engine.figures import CacheChange
from engine.kv.parking import Reading
from engine.step import SegmentHead
from tests.kit.domain import POLL_S
from tests.kit.engines import (
    PERSONA,
    Chat,
    a_config,
    fork_remote,
    open_local,
    share_made,
)
from tests.kit.model import generate, loaded_model

REPLY = 6
on_both = pytest.mark.parametrize("config", PREFIX_INDEXES, indirect=True)
"""Where an index is filled from the disk alone."""
LIMITS = Limits(max_output_tokens=REPLY, ignore_eos=True)
PAGE = 4096
SHORT = (
    "Tell me about ships, boats, rafts, ferries, barges and canoes, and who sails on each of them."
)
LONG = "Tell me a story about " + ", ".join(f"a ship called number {n}" for n in range(24))


@pytest.fixture
def config(tmp_path, request) -> EngineConfig:
    """A folder of its own for what is parked; the converted model is everybody's."""
    share_made(tmp_path)
    index = getattr(request, "param", "radix")
    return a_config(blocks=40, data_dir=tmp_path, disk_bytes=1 << 30, prefix_index=index)


async def say(chat: Chat, text: str) -> int:
    """One turn that says what `generate` says; how many tokens of it were cached."""
    return (await turn(chat, text)).cached_tokens


async def turn(chat: Chat, text: str) -> Receipt:
    job = await chat.next_job(text)
    outcome = await chat.say(text, limits=LIMITS)
    assert list(outcome.token_ids) == generate(loaded_model(), job.token_ids, REPLY)
    return outcome.receipt


@on_both
async def test_01_a_conversation_is_warm_after_a_restart(config):
    async with open_local(config) as engine:
        chat = Chat(engine, persona=PERSONA)
        await say(chat, LONG)
        await say(chat, "And then?")
    known = len(chat.token_ids)

    async with open_local(config) as engine:
        chat.engine = engine
        assert await say(chat, "How does it end?") >= known - 1


async def park(chat: Chat) -> None:
    """Until all of it lies on the disk, which others may keep busy."""
    owner_id = OwnerId(chat.owner)
    subject = Subject(kind=SubjectKind.SESSION, subject_id=chat.session_id, owner_id=owner_id)
    await chat.engine.lease(subject, Park())
    parked = 0
    while parked < len(chat.token_ids) - 1:
        await asyncio.sleep(POLL_S)
        sessions = (await chat.engine.snapshot()).sessions
        parked = max(one.disk_tokens for one in sessions if one.session_id == chat.session_id)


@pytest.mark.row("engine 32")
async def test_06_sessions_that_do_not_fit_are_parked_and_say_the_same(config, monkeypatch):
    # So little is computed sooner than it is read where the disk is busy.
    monkeypatch.setattr(Reading, "seconds", lambda *_: 0.0)
    async with open_local(config) as engine:
        chats = [Chat(engine, owner=f"user-{number}") for number in range(4)]
        for chat in chats:
            await say(chat, LONG)
            await park(chat)
        for chat in chats:
            known = len(chat.token_ids)
            assert await say(chat, "And then?") >= known - 1
        stats = await engine.stats()

    assert stats.evicted_blocks > 0
    assert stats.tiers[0].segments > 0


@pytest.mark.row("engine 26")
async def test_01_damaged_and_foreign_segments_are_computed_again(config, tmp_path):
    async with open_local(config) as engine:
        chat = Chat(engine)
        await say(chat, LONG)
    files = sorted((tmp_path / "parked").glob("*.safetensors"))
    assert len(files) > 1
    flip(files[0])
    files[-1].write_bytes(files[-1].read_bytes()[:-100])

    async with open_local(config) as engine:
        chat.engine = engine
        at_start = (await engine.stats()).segments[CacheChange.DAMAGED]
        assert await say(chat, "And then?") == 0
        damaged = (await engine.stats()).segments[CacheChange.DAMAGED]

    assert (at_start, damaged) == (1, 2)


LEFT: dict[str, Callable[[bytes, bytes], bytes]] = {
    "nothing": lambda _whole, _old: b"",
    "zeroes": lambda whole, _old: bytes(len(whole)),
    "zeroes from its second page on": lambda whole, _old: whole[:PAGE] + bytes(len(whole) - PAGE),
    "its first half": lambda whole, _old: whole[: len(whole) // 2 // PAGE * PAGE],
    "what lay there before": lambda _whole, old: old,
}
"""What a power cut may leave under a file's name where it was never flushed."""


async def test_01_whatever_a_power_cut_leaves_of_a_segment_is_refused_counted_and_computed_again(
    config, tmp_path
):
    async with open_local(config) as engine:
        chats = {how: Chat(engine, owner=how) for how in (*LEFT, "another name")}
        old = Chat(engine, owner="somebody")
        for chat in (old, *chats.values()):
            await say(chat, SHORT)
    files = {how: files_of(tmp_path / "parked", how) for how in (*chats, "somebody")}
    for how, leave in LEFT.items():
        for file in files[how]:
            file.write_bytes(leave(file.read_bytes(), files["somebody"][0].read_bytes()))
    unnamed = [file.rename(file.with_suffix(".part")) for file in files["another name"]]
    broken = [file for how in LEFT for file in files[how]]
    assert len(broken) >= len(LEFT) and unnamed

    async with open_local(config) as engine:
        for chat in (old, *chats.values()):
            chat.engine = engine
        for chat in chats.values():
            assert (await turn(chat, "And then?")).cached_by_source.session == 0
        damaged = (await engine.stats()).segments[CacheChange.DAMAGED]
        assert (await turn(old, "And then?")).cached_by_source.session > 0

    assert damaged == len(broken)
    assert not [file for file in (*broken, *unnamed) if file.exists()]


def files_of(folder: Path, owner: str) -> list[Path]:
    """What was parked for an owner."""
    found = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            head = msgspec.json.decode(opened.metadata()["head"], type=SegmentHead)
        found += [file] if head.owner_id == owner else []
    return found


async def test_01_after_a_kill_what_is_whole_is_restored_and_the_rest_computed(config):
    async with fork_remote(config) as engine:
        chat = Chat(engine)
        await chat.say(LONG, limits=LIMITS)
    known = len(chat.token_ids)

    async with fork_remote(config) as engine:
        chat.engine = engine
        other = Chat(engine, owner="other")
        await other.say("Hello there.", limits=LIMITS)
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        restored = await chat.say("And then?", limits=LIMITS)
        computed = await other.say("And you?", limits=LIMITS)

    assert restored.receipt.cached_tokens >= known - 1
    assert computed.receipt.cached_by_source.session == 0
    assert computed.receipt.miss_reason is MissReason.ENGINE_RESTART


def flip(file: Path) -> None:
    """One bit of its last row."""
    whole = bytearray(file.read_bytes())
    whole[-7] ^= 4
    file.write_bytes(whole)
