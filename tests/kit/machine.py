"""Long random lives of a core on the paper model, as hypothesis rules.

After every rule the product's own checks run. Every reply is compared with a plain recomputation,
every hit with what the job's owner could see, and at the end of a life everything is closed and
the pool must be back at its baseline.
"""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.api import (
    OPERATOR_SCOPE,
    FinishReason,
    Forget,
    Hold,
    Job,
    JobClass,
    OwnerId,
    Park,
    Receipt,
    RetentionClass,
    Scope,
    Subject,
    SubjectKind,
    Warm,
    Wish,
    Withdraw,
)
from engine.config import RETENTIONS
from engine.errors import Overloaded, PromptTooLong
from engine.kv.blocks import BlockPool, BlockState
from engine.kv.cache import Cache
from engine.kv.prefix import is_operators, scopes_of
from engine.kv.radix import RadixIndex
from engine.kv.tiers import Tiers, TierSizes
from engine.outcome import Ended
from engine.parts import CoreConfig
from engine.step import BlockId
from tests.kit.desk import ANN, BEN, Desk, config
from tests.kit.indexes import MakeIndex
from tests.kit.paper import EOS_TOKEN_ID, answer

PERSONA = (2, 3, 4, 2, 2, 3, 4, 4, 3, 2, 3)
"""Eleven tokens: with blocks of 4 or 16 the operator's zone ends inside a block."""

# Few different ids and short texts, so that prefixes collide all the time.
texts = st.lists(st.integers(2, 4), min_size=1, max_size=9)
owners = st.sampled_from([ANN, BEN])
sessions = st.sampled_from(["s1", "s2", "s3", None])
outputs = st.sampled_from([0, 1, 3, 8, None])
classes = st.sampled_from(list(JobClass))
wishes = st.one_of(
    st.sampled_from([Forget(), Withdraw(), Park(), Warm()]),
    st.builds(
        Hold,
        retention=st.sampled_from(list(RetentionClass)),
        ttl_s=st.sampled_from([None, 2.0, 700.0]),
    ),
)
subjects = st.builds(
    Subject,
    kind=st.sampled_from(list(SubjectKind)),
    subject_id=st.sampled_from(["s1", "s2", "s3"]),
    owner_id=owners,
)
picks = st.integers(0, 1 << 16)


def visible_prefix(job: Job, others: Sequence[tuple[Job, Sequence[int]]]) -> int:
    """The longest prefix of the prompt that another job's ids hold in the very same scopes."""
    own = _labelled(job, job.token_ids)
    return max((_common(own, _labelled(other, ids)) for other, ids in others), default=0)


def _labelled(job: Job, ids: Sequence[int]) -> list[tuple[Scope, int]]:
    labels: list[tuple[Scope, int]] = []
    for scope, end in scopes_of(job.zones):
        labels += [(scope, token_id) for token_id in ids[len(labels) : end]]
    return labels


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    pairs = zip(left, right, strict=False)
    return next(
        (at for at, (one, two) in enumerate(pairs) if one != two), min(len(left), len(right))
    )


class CacheLife(RuleBasedStateMachine):
    """One engine's life. Subclasses say which prefix index it has."""

    make_index: MakeIndex = staticmethod(RadixIndex)

    @initialize(
        block_tokens=st.sampled_from([1, 3, 4, 16]),
        pool_blocks=st.sampled_from([6, 12, 48]),
        step_tokens=st.sampled_from([8, 40]),
        max_running=st.sampled_from([1, 3, 8]),
        shuffle=st.randoms(use_true_random=False),
        disk=st.sampled_from([0, 40, 400]),
        retention=st.sampled_from(RETENTIONS),
    )
    def boot(self, *, block_tokens, pool_blocks, step_tokens, max_running, shuffle, **kept):
        disk = kept["disk"]
        core_config = config(
            block_tokens=block_tokens,
            pool_blocks=pool_blocks,
            context_tokens=120,
            step_tokens=step_tokens,
            max_running=max_running,
            max_waiting=6,
            retention=kept["retention"],
            tiers=TierSizes(
                token_bytes=1, host_bytes=disk // 2, disk_bytes=disk, segment_tokens=16
            ),
        )
        order = list(range(pool_blocks))
        shuffle.shuffle(order)
        self._open(core_config, order)
        self.jobs: list[Job] = []
        self.checked: set[str] = set()

    # ------------------------------------------------------------ jobs

    @rule(text=texts, owner=owners, session=sessions, output=outputs, job_class=classes)
    def submit_fresh(self, *, text, owner, session, output, job_class):
        self._submit(text, owner, session, output=output, job_class=job_class)

    @rule(text=texts, owner=owners, session=sessions, output=outputs, job_class=classes)
    def submit_with_persona(self, *, text, owner, session, output, job_class):
        self._submit([*PERSONA, *text], owner, session, output=output, job_class=job_class)

    @precondition(lambda self: self.desk.ended)
    @rule(pick=picks, text=texts, session=sessions, output=outputs)
    def follow_up(self, pick, text, session, output):
        job = self._pick(pick)
        self._submit([*self._ids_of(job), *text], job.owner_id, session, output=output)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, cut=picks, text=texts, session=sessions)
    def fork_in_mid_block(self, pick, cut, text, session):
        job = self._pick(pick)
        ids = self._ids_of(job)
        self._submit([*ids[: 1 + cut % len(ids)], *text], job.owner_id, session, output=3)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, owner=owners)
    def repeat_of_another_owner(self, pick, owner):
        self._submit(self._pick(pick).token_ids, owner, None, output=2)

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, said=st.integers(1, 4))
    def resume_after_a_loss(self, pick, said):
        job = self._pick(pick)
        resumed = answer(job.token_ids, said, (EOS_TOKEN_ID,))
        self._submit(job.token_ids, job.owner_id, None, output=6, resumed=resumed)

    @rule(owner=owners, fill=st.integers(2, 4))
    def press_for_the_whole_pool(self, owner, fill):
        limit = min(120, self.desk.config.pool_blocks * self.desk.config.block_tokens)
        self._submit([fill] * (limit - 1), owner, None, output=1)

    # ------------------------------------------------------------ time and interruptions

    @rule()
    def step(self):
        self.desk.step()

    @rule()
    def step_on(self):
        for _ in range(8):
            self.desk.step()

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def cancel(self, pick):
        self.desk.cancel(self._pick(pick))

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def cancel_in_flight(self, pick):
        job = self._pick(pick)
        self.desk.step(meanwhile=lambda core: core.cancel(job.job_id, self.desk.now))
        assert job.job_id in self.desk.ended

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, cut=picks, extra=st.booleans())
    def stop_in_flight(self, pick, cut, extra):
        job = self._pick(pick)
        said = self.desk.emitted.get(job.job_id, [])
        kept = (*job.resumed_output, *said[: cut % (len(said) + 1)], *([5] if extra else []))
        self.desk.step(meanwhile=lambda core: core.stop(job.job_id, kept, self.desk.now))

    @rule(subject=subjects, wish=wishes)
    def lease(self, subject: Subject, wish: Wish):
        self._lease(subject, wish)

    @rule(subject=subjects, wish=wishes)
    def lease_in_flight(self, subject: Subject, wish: Wish):
        self.desk.step(meanwhile=lambda core: core.lease(subject, wish, self.desk.now))

    @rule(retention=st.sampled_from([RetentionClass.KEPT, RetentionClass.LIVE]))
    def wish_for_everything(self, retention):
        """Whatever anybody has: more than may be pinned, most of the time."""
        for owner in (ANN, BEN):
            subject = Subject(kind=SubjectKind.OWNER, subject_id=owner, owner_id=owner)
            self._lease(subject, Hold(retention=retention))

    @precondition(lambda self: self.desk.paper.moving)
    @rule(pick=picks, whole=st.sampled_from([None, None, None, 0, 1]))
    def arrive(self, pick, whole):
        """A transfer is over, in any order; now and then not all of it is whole."""
        self.desk.arrive(pick % len(self.desk.paper.moving), pieces=whole)

    @rule(seconds=st.sampled_from([3.0, 1000.0]))
    def expire(self, seconds):
        self.desk.now += seconds

    # ------------------------------------------------------------ what must hold

    @invariant()
    def books_are_right(self) -> None:
        self.desk.core.check()
        counts = self.desk.core.stats().blocks
        assert counts.total == self.desk.config.pool_blocks

    @invariant()
    def what_runs_stays_matchable(self) -> None:
        for sequence in self.desk.core._scheduler.running:
            if sequence.holding is not None and not sequence.forgotten:
                end = sequence.holding.published
                known = self.cache.matched_tokens(sequence.ids, sequence.scopes, end)
                assert known == end, "a block in use was evicted"

    @invariant()
    def replies_are_those_of_a_plain_recomputation(self) -> None:
        for job in self.jobs:
            if job.job_id in self.desk.ended and job.job_id not in self.checked:
                self.checked.add(job.job_id)
                self._check_reply(job, self.desk.ended[job.job_id])

    @invariant()
    def what_nobody_can_match_is_nowhere(self) -> None:
        if self.cache.wipes_wait:
            return  # nothing is written before they are carried out
        paper, size = self.desk.paper, self.desk.config.block_tokens
        for at in range(self.desk.config.pool_blocks):
            if self.cache._pool.state(BlockId(at)) is BlockState.FREE:
                assert paper.is_blank(BlockId(at))
        for entry in self.cache._index.entries():
            ends_in = entry.blocks[-1]
            if entry.is_leaf and is_operators(entry.scope) and not self.cache._pool.busy(ends_in):
                assert entry.end % size == 0 or paper.is_blank(ends_in, entry.end % size)

    def check_everything(self) -> None:
        """All of these, for a life that is not hypothesis's."""
        self.books_are_right()
        self.what_runs_stays_matchable()
        self.replies_are_those_of_a_plain_recomputation()
        self.what_nobody_can_match_is_nowhere()

    def teardown(self):
        if not hasattr(self, "desk"):
            return
        self.desk.drain()
        # The core has jobs of its own besides: what is wished back from a lower tier.
        assert {job.job_id for job in self.jobs} <= set(self.desk.ended)
        self.replies_are_those_of_a_plain_recomputation()
        for owner in (ANN, BEN):
            self._lease(Subject(kind=SubjectKind.OWNER, subject_id=owner, owner_id=owner), Forget())
        self.desk.drain()
        self.books_are_right()
        self._check_baseline()

    def _check_reply(self, job: Job, ended: Ended) -> None:
        said = (*job.resumed_output, *self.desk.emitted.get(job.job_id, ()))
        assert said == answer(job.token_ids, len(said), (EOS_TOKEN_ID,))
        if ended.reason in (FinishReason.LENGTH, FinishReason.CANCELLED):
            assert ended.token_ids == said
        receipt = ended.receipt
        if receipt is None:
            return
        assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens
        self._check_computed(job, receipt)
        assert receipt.output_tokens == len(ended.token_ids)
        others = [(other, self._ids_of(other)) for other in self.jobs if other is not job]
        assert receipt.cached_tokens <= visible_prefix(job, others)

    def _check_computed(self, job: Job, receipt: Receipt) -> None:
        """Each token of the prompt that the job got through counts once, as what it was."""
        prompt = len(job.token_ids)
        if job.resumed_output:
            assert receipt.prompt_tokens == prompt
            return
        done = {at for at in self.desk.paper.computed.get(job.job_id, ()) if at < prompt}
        assert receipt.computed_tokens <= len(done)
        if not self.desk.core.stats().preemptions:
            assert receipt.computed_tokens == len(done)
        assert receipt.prompt_tokens >= max(done, default=-1) + 1
        if self.desk.emitted.get(job.job_id):
            assert receipt.prompt_tokens == prompt

    def _check_baseline(self) -> None:
        """Only the operator's zone may be left: it is nobody's to forget."""
        assert {node.scope for node in self.desk.core.snapshot(0.0).nodes} <= {OPERATOR_SCOPE}
        counts = self.desk.core.stats().blocks
        assert (counts.in_use, counts.copying) == (0, 0)
        left = -(-len(PERSONA) // self.desk.config.block_tokens)
        assert counts.free >= counts.total - left

    # ------------------------------------------------------------ inside

    def _open(self, core_config: CoreConfig, order: Sequence[int]) -> None:
        self.cache = cache_of(core_config, self.make_index, order)
        self.desk = Desk(core_config, self.cache)

    def _lease(self, subject: Subject, wish: Wish) -> None:
        self.desk.core.lease(subject, wish, self.desk.now)

    def _pick(self, pick: int) -> Job:
        return self.jobs[pick % len(self.jobs)]

    def _ids_of(self, job: Job) -> list[int]:
        said = self.desk.emitted.get(job.job_id, [])
        return [*job.token_ids, *job.resumed_output, *said]

    def _submit(
        self,
        ids: Sequence[int],
        owner: OwnerId,
        session: str | None,
        *,
        output: int | None,
        job_class: JobClass = JobClass.INTERACTIVE,
        resumed: Sequence[int] = (),
    ) -> None:
        shared = len(PERSONA) if tuple(ids[: len(PERSONA)]) == PERSONA else 0
        job = self.desk.job(
            ids,
            owner_id=owner,
            session=session,
            shared=shared,
            output=output,
            job_class=job_class,
            resumed=resumed,
        )
        try:
            self.jobs.append(self.desk.submit(job))
        except PromptTooLong as refusal:
            assert refusal.needed_tokens > refusal.limit_tokens
        except Overloaded as refusal:
            assert refusal.retry_after_s > 0


def cache_of(core_config: CoreConfig, make_index: MakeIndex, order: Sequence[int]) -> Cache:
    """A cache of the config's sizes on any index; blocks are first given out in this order."""
    pool = BlockPool(core_config.pool_blocks, order=order)
    index = make_index(pool, core_config.block_tokens)
    tiers = Tiers(core_config.tiers, pool, core_config.block_tokens, core_config.boot_id)
    cache = Cache(pool, index, core_config.block_tokens, tiers=tiers)
    if core_config.retention == "cost":
        cache.keep_by_cost()
    return cache


def life_on(make_index: MakeIndex) -> type[CacheLife]:
    """The same life on another index."""
    return type("Life", (CacheLife,), {"make_index": staticmethod(make_index)})
