"""The engine's figures once more, from nothing but what jobs said of themselves.

Knows jobs and their receipts; asks the engine for nothing but the `Stats` that it compares.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

import msgspec

from engine.api import FinishReason, Job, JobClass, Receipt, Stats, zone_spans
from engine.figures import CachedShare, Histogram, TurnTokens

Told = tuple[Job, FinishReason, Receipt | None]
"""A job that has ended."""


def check(stats: Stats, told: Iterable[Told]) -> None:
    """Every figure that receipts know of is their sum."""
    told = list(told)
    receipts = [(job, receipt) for job, _, receipt in told if receipt is not None]
    for name in ("prompt", "cached", "restored", "computed", "output"):
        field = f"{name}_tokens"
        assert getattr(stats, field) == sum(getattr(r, field) for _, r in receipts), field
    assert stats.cached_tokens + stats.computed_tokens == stats.prompt_tokens
    cached = msgspec.structs.asdict(stats.cached_by_source)
    queries, hits = Counter[str](), Counter[str]()
    for job, receipt in receipts:
        hits.update(msgspec.structs.asdict(receipt.cached_by_source))
        for start, end, zone in zone_spans(job.zones):
            queries[zone.source] += len(range(start, min(end, receipt.prompt_tokens)))
    assert Counter(cached) == hits
    assert Counter(stats.prompt_by_source) == queries
    assert all(cached[source] <= queries[source] for source in cached)
    assert stats.finished_jobs == Counter(reason for _, reason, _ in told)
    _check_drafts(stats, receipts)
    turns = [one for one in receipts if one[0].job_class is JobClass.INTERACTIVE]
    assert stats.misses == Counter(r.miss_reason for _, r in turns if r.miss_reason)
    _check_times(stats, [receipt for _, receipt in turns])
    _check_turns(stats, turns)


def _check_drafts(stats: Stats, receipts: Iterable[tuple[Job, Receipt]]) -> None:
    drafts = stats.drafts
    computed = sum(r.computed_tokens for job, r in receipts if job.job_class is JobClass.DRAFT)
    assert drafts.computed == computed == drafts.used + drafts.wasted + drafts.waiting
    assert min(drafts.used, drafts.wasted, drafts.waiting) >= 0


def _check_turns(stats: Stats, turns: Iterable[tuple[Job, Receipt]]) -> None:
    first, later = Counter[str](), Counter[str]()
    for job, receipt in turns:
        sums = first if job.history is None else later
        before = job.history.token_ids if job.history else ()
        pairs = zip(before, job.token_ids[: receipt.prompt_tokens], strict=False)
        known = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        sums.update(
            turns=1,
            prompt_tokens=receipt.prompt_tokens,
            cached_tokens=receipt.cached_tokens,
            known_tokens=known,
            found_tokens=min(known, receipt.cached_tokens),
        )
    assert stats.first_turns == TurnTokens(**first)
    assert stats.later_turns == TurnTokens(**later)


def _check_times(stats: Stats, turns: Iterable[Receipt]) -> None:
    turns = list(turns)
    _check_histogram(stats.queue_s, [r.queue_s for r in turns])
    _check_histogram(stats.prefill_s, [r.prefill_s for r in turns])
    for share, (above, up_to) in {
        CachedShare.NOTHING: (-1.0, 0.0),
        CachedShare.SOME: (0.0, 0.5 - 1e-9),
        CachedShare.MOST: (0.5 - 1e-9, 0.9 - 1e-9),
        CachedShare.NEARLY_ALL: (0.9 - 1e-9, 1.0),
    }.items():
        firsts = [
            r.first_token_s
            for r in turns
            if r.first_token_s is not None and above < r.cached_tokens / r.prompt_tokens <= up_to
        ]
        _check_histogram(stats.first_token_s[share], firsts)


def _check_histogram(histogram: Histogram, seconds: list[float]) -> None:
    counts = [0] * (len(histogram.bounds) + 1)
    for value in seconds:
        counts[bisect_left(histogram.bounds, value)] += 1
    assert list(histogram.counts) == counts
    assert abs(histogram.sum - sum(seconds)) < 1e-6 * (1 + len(seconds))
