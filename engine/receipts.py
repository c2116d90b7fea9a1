"""What turns cost: one receipt per turn, the counters that sum them up, and all that is counted.

Knows finished sequences and what the cache counted; decides nothing. `cached + computed = prompt` in
every receipt (law 2).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

import msgspec

from engine.api import JobClass, Receipt, zone_spans
from engine.drafts import Drafts
from engine.figures import (
    SEGMENT_CHANGES,
    CacheChange,
    CachedBySource,
    CachedShare,
    Histogram,
    Stats,
    TurnTokens,
)
from engine.kv.cache import Cache
from engine.kv.misses import Fingerprints, common_tokens
from engine.sequence import Sequence
from engine.terms import CacheSource, FinishReason, MissReason

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
"""From one decode step to what nobody waits for."""


def cached_by_source(sequence: Sequence) -> CachedBySource:
    """The cached prompt tokens by whose zone they lie in."""
    cached: Counter[str] = Counter()
    for start, end, zone in zone_spans(sequence.job.zones):
        for found_start, found_end in sequence.progress.found:
            cached[zone.source.value] += max(0, min(end, found_end) - max(start, found_start))
    return CachedBySource(**cached)


def write_receipt(
    sequence: Sequence, fingerprints: Fingerprints, output_tokens: int, now: float
) -> Receipt | None:
    """The receipt of a turn that ends `now`; None when it never got as far as its blocks.

    A turn that was cancelled in mid-prefill counts the part of its prompt that it had got
    through. Whatever has output has got through all of it, in an engine before this one if need be.
    """
    times = sequence.times
    if times.admitted_s is None:
        return None
    prompt_tokens = sequence.prompt_tokens if sequence.output else sequence.progress.reached
    cached_tokens = sequence.progress.cached_tokens
    first_token_s = times.first_token_s
    return Receipt(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        restored_tokens=sequence.progress.restored_tokens,
        computed_tokens=prompt_tokens - cached_tokens,
        output_tokens=output_tokens,
        cached_by_source=cached_by_source(sequence),
        miss_reason=sequence.miss.reason,
        differs_at=sequence.miss.differs_at,
        queue_s=times.admitted_s - times.submitted_s,
        prefill_s=(now if times.prefilled_s is None else times.prefilled_s) - times.admitted_s,
        first_token_s=None if first_token_s is None else first_token_s - times.submitted_s,
        total_s=now - times.submitted_s,
        model_fingerprint=fingerprints.model_fingerprint,
        template_fingerprint=fingerprints.template_fingerprint,
        boot_id=fingerprints.boot_id,
    )


Spans = Iterable[tuple[int, int]]


class Times:
    """Durations, counted by length."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum += seconds

    def histogram(self) -> Histogram:
        return Histogram(bounds=BOUNDS_S, counts=tuple(self._counts), sum=self._sum)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the core counts itself."""

    boot_id: str
    steps: int
    step_s: float
    running_jobs: int
    waiting_jobs: int
    preemptions: int


class Turns:
    """Sums over the prompts of turns."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add(self, receipt: Receipt, known_tokens: int) -> None:
        cached_tokens = receipt.cached_tokens
        self._sums["turns"] += 1
        self._sums["prompt_tokens"] += receipt.prompt_tokens
        self._sums["cached_tokens"] += cached_tokens
        self._sums["known_tokens"] += known_tokens
        self._sums["found_tokens"] += min(cached_tokens, known_tokens)

    def tokens(self) -> TurnTokens:
        return TurnTokens(**self._sums)


class Totals:
    """Sums over all receipts since boot, and what the cache counts itself."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.drafts = Drafts(cache)
        self._tokens: Counter[str] = Counter()
        self._cached: Counter[str] = Counter()
        self._prompt: Counter[CacheSource] = Counter()
        self._finished: Counter[FinishReason] = Counter()
        self._misses: Counter[MissReason] = Counter()
        self._queue_s, self._prefill_s = Times(), Times()
        self._first_token_s = {share: Times() for share in CachedShare}
        self._first_turns, self._later_turns = Turns(), Turns()
        self._saved_s = 0.0

    def refuse(self) -> None:
        self._finished[FinishReason.REFUSED] += 1

    def add(self, sequence: Sequence, reason: FinishReason, receipt: Receipt | None) -> None:
        """A job has ended; None: it was never admitted."""
        job = sequence.job
        self._finished[reason] += 1
        if receipt is None:
            return
        self._saved_s += self._cache.worth_s(sequence.progress.found)
        for name in ("prompt", "cached", "restored", "computed", "output"):
            self._tokens[name] += getattr(receipt, f"{name}_tokens")
        self._cached.update(msgspec.structs.asdict(receipt.cached_by_source))
        for start, end, zone in zone_spans(job.zones):
            self._prompt[zone.source] += max(0, min(end, receipt.prompt_tokens) - start)
        if job.job_class is JobClass.INTERACTIVE:
            if receipt.miss_reason is not None:
                self._misses[receipt.miss_reason] += 1
            self._time(receipt)
            self._compare(sequence, receipt)
        elif job.job_class is JobClass.DRAFT:
            self.drafts.book(sequence, receipt.computed_tokens)

    def stats(self, work: Work) -> Stats:
        """All that is counted, here and in the cache."""
        tokens, cache = self._tokens, self._cache
        journal = cache.journal
        return Stats(
            boot_id=work.boot_id,
            steps=work.steps,
            running_jobs=work.running_jobs,
            waiting_jobs=work.waiting_jobs,
            blocks=cache.counts(),
            prompt_tokens=tokens["prompt"],
            cached_tokens=tokens["cached"],
            computed_tokens=tokens["computed"],
            restored_tokens=tokens["restored"],
            output_tokens=tokens["output"],
            prompt_by_source=dict(self._prompt),
            cached_by_source=CachedBySource(**self._cached),
            first_turns=self._first_turns.tokens(),
            later_turns=self._later_turns.tokens(),
            saved_s=self._saved_s,
            finished_jobs=dict(self._finished),
            misses=dict(self._misses),
            published_tokens=journal.tokens[CacheChange.PUBLISHED],
            evictions=journal.evictions(),
            regretted_tokens=cache.regretted_tokens,
            tiers=cache.tiers.counts(),
            segments={kind: journal.counted[kind] for kind in SEGMENT_CHANGES},
            degradations=journal.counted[CacheChange.DEGRADED],
            drafts=self.drafts.tokens(),
            preemptions=work.preemptions,
            queue_s=self._queue_s.histogram(),
            prefill_s=self._prefill_s.histogram(),
            first_token_s={s: times.histogram() for s, times in self._first_token_s.items()},
            step_s=work.step_s,
            cache_s=cache.spent_s,
        )

    def _compare(self, sequence: Sequence, receipt: Receipt) -> None:
        history = sequence.job.history
        if history is None:
            self._first_turns.add(receipt, 0)
            return
        known_tokens = common_tokens(history.token_ids, sequence.job.token_ids)
        self._later_turns.add(receipt, min(known_tokens, receipt.prompt_tokens))

    def _time(self, receipt: Receipt) -> None:
        self._queue_s.add(receipt.queue_s)
        self._prefill_s.add(receipt.prefill_s)
        if receipt.first_token_s is not None:
            self._first_token_s[cached_share(receipt)].add(receipt.first_token_s)


def cached_share(receipt: Receipt) -> CachedShare:
    """In whole numbers, so that a border is where it says."""
    cached, prompt = receipt.cached_tokens, receipt.prompt_tokens
    if not cached:
        return CachedShare.NOTHING
    if 2 * cached < prompt:
        return CachedShare.SOME
    return CachedShare.MOST if 10 * cached < 9 * prompt else CachedShare.NEARLY_ALL
