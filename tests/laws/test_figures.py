"""What the engine tells of itself is true (laws 2, 5), is nobody's text (law 11), costs nothing (12)."""

from collections import Counter
from contextlib import aclosing

import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from engine.api import (
    OPERATOR_SCOPE,
    FinishReason,
    Forget,
    Hold,
    JobClass,
    RetentionClass,
    SessionId,
    Subject,
    SubjectKind,
)
from engine.figures import CacheChange, CacheEvent, CacheSnapshot, EvictionReason, Stats
from engine.kv import journal
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.kv.prefix import path_of
from engine.kv.tiers import TierSizes
from engine.wire import (
    Replies,
    Reply,
    ReplyBody,
    SnapshotReply,
    StatsReply,
    WatchReply,
    pack,
    unpack_note,
)
from tests.kit import recount
from tests.kit.desk import ANN, BEN, Desk, config, seeded
from tests.kit.engines import Chat, a_job, as_served, first_prompt, fork_remote, open_local, play
from tests.kit.indexes import INDEXES
from tests.kit.machine import CacheLife

LIVES = settings(max_examples=40, stateful_step_count=60, deadline=None)
DRAFT = JobClass.DRAFT
EVICTING = {CacheChange.EVICTED, CacheChange.FORGOTTEN}


def told(desk: Desk, jobs) -> list[recount.Told]:
    ends = [(job, desk.ended[job.job_id]) for job in jobs if job.job_id in desk.ended]
    return [(job, ended.reason, ended.receipt) for job, ended in ends]


class CountedLife(CacheLife):
    """A life in which every figure is counted once more after every step of it."""

    @invariant()
    def figures_are_the_sum_of_receipts(self) -> None:
        stats, ended = self.desk.core.stats(), told(self.desk, self.jobs)
        # Who is refused at the door is no job of this desk; a title can be refused later.
        finished, refused = dict(stats.finished_jobs), FinishReason.REFUSED
        later = sum(reason is refused for _, reason, _ in ended)
        assert finished.pop(refused, 0) >= later
        finished |= {refused: later} if later else {}
        recount.check(msgspec.structs.replace(stats, finished_jobs=finished), ended)

    @invariant()
    def what_was_published_is_there_or_was_let_go(self) -> None:
        stats, snapshot = self.desk.core.stats(), self.desk.core.snapshot(self.desk.now)
        gone = sum(one.tokens for one in stats.evictions)
        assert stats.published_tokens - gone == sum(node.tokens for node in snapshot.nodes)

    @invariant()
    def events_sum_to_the_counters(self) -> None:
        stats, events = self.desk.core.stats(), self.desk.core.cache_events(0)
        assert [e.sequence_number for e in events] == list(range(1, len(events) + 1))
        tokens: Counter[object] = Counter()
        for event in events:
            tokens[event.kind] += event.tokens
            if event.kind in EVICTING:
                tokens[event.retention, event.reason] += event.tokens
        assert tokens[CacheChange.PUBLISHED] == stats.published_tokens
        assert {(e.retention, e.reason): e.tokens for e in stats.evictions} == {
            key: count for key, count in tokens.items() if isinstance(key, tuple)
        }

    @invariant()
    def blocks_and_paths_of_sessions_are_counted_once(self) -> None:
        leases = {lease.key: lease for lease in self.cache._leases}
        for view in self.desk.core.snapshot(self.desk.now, tree=False).sessions:
            lease = leases.get((view.owner_id, view.session_id))
            entries = lease.entries if lease else ()
            # A path that another one of theirs goes on from ends in whoever's block its tail is.
            above = {one for entry in entries for one in entry.path() if one is not entry}
            longest = [entry for entry in entries if entry not in above]
            tables = [path_of(entry, self.cache._block_tokens)[2] for entry in longest]
            assert view.blocks == len({block for table in tables for block in table})
            assert 0 <= view.shared_blocks <= view.blocks
        nodes = self.desk.core.snapshot(self.desk.now).nodes
        paths = sum(len(lease.entries) for lease in leases.values())
        assert sum(node.paths for node in nodes if node.parent_id is None) == paths

    @invariant()
    def pinned_blocks_are_counted_once(self) -> None:
        snapshot = self.desk.core.snapshot(self.desk.now)
        assert sum(snapshot.pinned_blocks.values()) == self.cache._pool.pinned_blocks
        assert all(retention >= RetentionClass.KEPT for retention in snapshot.pinned_blocks)


@pytest.mark.row("engine 20")
@pytest.mark.parametrize("make_index", INDEXES)
def test_02_figures_equal_a_recount_of_every_receipt_through_random_lives(make_index):
    class Life(CountedLife):
        pass

    Life.make_index = staticmethod(make_index)
    run_state_machine_as_test(Life, settings=LIVES)


@pytest.mark.row("engine 20")
@pytest.mark.parametrize("seed", range(4))
def test_02_figures_equal_a_recount_where_conversations_are_parked_and_restored(seed):
    chance = seeded(seed)
    sizes = TierSizes(token_bytes=1, host_bytes=500, disk_bytes=4000, segment_tokens=32)
    desk = Desk(config(pool_blocks=24, context_tokens=256, tiers=sizes))
    logs: dict[str, list[int]] = {f"s{at}": [] for at in range(6)}
    jobs = []
    for _ in range(80):
        name = chance.choice(list(logs))
        typed = [chance.randint(2, 96) for _ in range(chance.randint(4, 30))]
        log = logs[name] if len(logs[name]) < 200 else []
        if chance.random() < 0.5:
            draft = desk.job([*log, *typed[:-2]], session=name, job_class=DRAFT, output=0)
            desk.submit(draft)
            desk.drain()  # it may be refused: it takes only room that is spare
            jobs.append(draft)
        typed = typed if chance.random() < 0.7 else typed[:3]
        turn = desk.job([*log, *typed, 1], session=name, output=chance.randint(1, 8))
        logs[name] = [*turn.token_ids, *desk.run(turn).token_ids]
        jobs.append(turn)
        desk.now += chance.choice([0.0, 700.0])
        desk.drain()

    stats = desk.core.stats()

    recount.check(stats, told(desk, jobs))
    assert stats.restored_tokens > 0 and stats.segments[CacheChange.RESTORED] > 0
    assert stats.drafts.used > 0 and stats.drafts.wasted > 0


@pytest.mark.row("engine 20")
async def test_02_the_real_engines_figures_equal_a_recount_of_its_receipts():
    jobs: list[recount.Told] = []
    async with open_local(as_served(blocks=26)) as engine:
        for owner in ("ann", "ben"):
            chat = Chat(engine, owner=owner, persona="You are a helpful assistant.")
            for text in ("Name an animal.", "And one more.", "Where does it live?"):
                job = await chat.next_job(text)
                outcome = await chat.say(text)
                jobs.append((job, outcome.finished.reason, outcome.receipt))
        prompt = await first_prompt(engine, "Count from one to two hundred in words. " * 36)
        job = a_job(prompt)
        outcome = await play(engine, job)
        jobs.append((job, outcome.finished.reason, outcome.receipt))
        stats = await engine.stats()

    recount.check(stats, jobs)
    assert stats.cached_by_source.persona > 0 and stats.cached_by_source.session > 0
    assert stats.evicted_blocks > 0


def strings(schema: object, name: str = "") -> set[str]:
    """Names of the fields that may hold free text or numbers in a row."""
    if isinstance(schema, list):
        return {found for one in schema for found in strings(one, name)}
    if not isinstance(schema, dict):
        return set()
    if schema.get("type") == "string" and "enum" not in schema:
        return {name}
    rows = schema.get("type") == "array" and schema.get("items", {}).get("type") == "integer"
    found = {name} if rows else set()
    for key, part in schema.items():
        inner = part.items() if key in ("properties", "$defs") else [(name, part)]
        found |= {one for field, kind in inner for one in strings(kind, field)}
    return found


def test_11_no_figure_and_no_event_has_room_for_ids_or_text():
    names = set().union(
        *(strings(msgspec.json.schema(k)) for k in (Stats, CacheSnapshot, CacheEvent))
    )

    hardware = {"processor", "name"}
    assert names == hardware | {
        *("boot_id", "session_id", "subject_id", "owner_id", "scope", "counts"),
    }


def test_11_figures_of_a_hit_are_the_same_whoever_else_sent_the_text():
    seen = []
    for other in (list(range(2, 42)), list(range(42, 82))):
        desk = Desk()
        desk.run(desk.job(other, owner_id=BEN, session="theirs"))
        receipt = desk.run(desk.job(list(range(2, 42)), owner_id=ANN, session="mine")).receipt
        seen.append((receipt, desk.core.stats().cached_tokens, desk.core.stats().regretted_tokens))

    assert seen[0] == seen[1]


def test_05_evictions_are_counted_in_the_class_and_for_the_reason_that_they_had():
    desk = Desk(config(pool_blocks=8, context_tokens=128))
    desk.run(desk.job(range(2, 34), session="a", output=1))
    subject = Subject(kind=SubjectKind.SESSION, subject_id="a", owner_id=ANN)
    desk.core.lease(subject, Forget(), desk.now)
    desk.run(desk.job(range(2, 82), session="b", output=1))
    wish = Hold(retention=RetentionClass.KEPT)
    desk.core.lease(Subject(kind=SubjectKind.SESSION, subject_id="b", owner_id=ANN), wish, desk.now)
    desk.run(desk.job([7] * 80, owner_id=BEN, session="c", output=1))

    stats = desk.core.stats()

    counted = {(one.retention, one.reason): one.blocks for one in stats.evictions}
    assert counted == {
        (RetentionClass.RECENT, EvictionReason.FORGOTTEN): 2,
        (RetentionClass.RECENT, EvictionReason.QUOTA): 2,
    }
    assert stats.evicted_blocks == 2 and stats.degradations == 1


def test_a_snapshot_tells_what_was_wished_and_granted_and_where_the_tokens_lie():
    sizes = TierSizes(token_bytes=1, disk_bytes=4096, segment_tokens=32)
    desk = Desk(config(pool_blocks=16, context_tokens=256, tiers=sizes))
    desk.run(desk.job(range(2, 66), session="parked"))
    desk.now += 10_000
    desk.drain()
    desk.run(desk.job([7] * 255, owner_id=BEN, output=1))
    desk.drain()
    desk.run(desk.job([9] * 20, session="held", output=1))
    desk.now += 1.0
    subject = Subject(kind=SubjectKind.SESSION, subject_id="held", owner_id=ANN)
    desk.core.lease(subject, Hold(retention=RetentionClass.LIVE, ttl_s=60.0), desk.now)

    snapshot = desk.core.snapshot(desk.now)

    views = {view.session_id: view for view in snapshot.sessions}
    parked, held = (views[SessionId(name)] for name in ("parked", "held"))
    assert (parked.tier, parked.cached_tokens, parked.disk_tokens) == ("disk", 0, 67)
    assert (held.wished, held.retention) == (RetentionClass.LIVE, RetentionClass.LIVE)
    assert (held.tier, held.expires_in_s, parked.wished) == ("device", 60.0, None)
    assert snapshot.pinned_blocks == {RetentionClass.LIVE: 2}
    assert [tier.tier for tier in snapshot.tiers] == ["disk"]
    assert snapshot.sequence_number == desk.core.cache_events(0)[-1].sequence_number


@pytest.mark.parametrize("make_index", INDEXES)
def test_a_snapshot_tells_who_goes_through_a_prefix_how_often_and_when_last(make_index):
    core_config = config()
    pool = BlockPool(core_config.pool_blocks)
    size = core_config.block_tokens
    desk = Desk(core_config, Cache(pool, make_index(pool, size), size))
    for at in range(3):
        desk.run(desk.job([*range(2, 34), 50 + at], session=f"s{at}", shared=32, output=1))
        desk.now += 10.0

    snapshot = desk.core.snapshot(desk.now)
    without = desk.core.snapshot(desk.now, tree=False)

    (persona,) = (node for node in snapshot.nodes if node.scope == OPERATOR_SCOPE)
    ages = sorted(one.idle_s for one in snapshot.sessions if one.idle_s is not None)
    assert (persona.hits, persona.paths, persona.idle_s) == (2, 3, ages[0])
    own = sorted((node.idle_s, node.hits, node.paths) for node in snapshot.nodes if node != persona)
    assert own == [(age, 0, 1) for age in ages]
    assert {(one.blocks, one.shared_blocks) for one in snapshot.sessions} == {(3, 2)}
    assert without == msgspec.structs.replace(snapshot, nodes=(), pinned_blocks={})


def test_who_comes_too_late_for_an_event_sees_a_gap_and_takes_a_snapshot(monkeypatch):
    monkeypatch.setattr(journal, "REMEMBERED_EVENTS", 3)
    desk = Desk()
    for at in range(5):
        desk.run(desk.job([9 + at] * 16, session=f"s{at}", output=1))

    events, snapshot = desk.core.cache_events(1), desk.core.snapshot(desk.now)

    numbers = [event.sequence_number for event in events]
    assert len(numbers) == 3 and numbers[0] > 2
    assert numbers[-1] == snapshot.sequence_number
    assert desk.core.cache_events(snapshot.sequence_number) == []


def test_figures_cross_to_another_process_as_they_are():
    desk = Desk(config(tiers=TierSizes(token_bytes=1, disk_bytes=4096)))
    desk.run(desk.job(range(2, 66), session="s", shared=20))
    subject = Subject(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN)
    desk.core.lease(subject, Hold(retention=RetentionClass.KEPT), desk.now)
    bodies: list[ReplyBody] = [
        StatsReply(stats=desk.core.stats()),
        SnapshotReply(snapshot=desk.core.snapshot(desk.now)),
        *(WatchReply(event=event) for event in desk.core.cache_events(0)),
    ]
    replies = Replies(replies=tuple(Reply(request_id=1, body=body) for body in bodies))

    assert unpack_note(pack(replies)) == replies
    assert {node.scope for node in desk.core.snapshot(desk.now).nodes} > {OPERATOR_SCOPE}


async def test_an_engine_in_its_own_process_tells_the_same_kinds():
    async with fork_remote(as_served()) as engine:
        before = (await engine.snapshot()).sequence_number
        await Chat(engine).say("Name an animal.")
        async with aclosing(engine.watch(before)) as changes:
            event = await anext(changes)

    assert event.kind is CacheChange.PUBLISHED
