"""What turns cost: one receipt per turn, and the counters that sum them up.

Knows finished sequences; decides nothing. `cached + computed = prompt` in every receipt (law 2).
"""

from collections import Counter

import msgspec

from engine.api import CachedBySource, FinishReason, Receipt, zone_spans
from engine.kv.misses import Fingerprints
from engine.sequence import Sequence


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


class Totals:
    """Sums over all receipts since boot."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()
        self.by_source: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    def add(self, reason: FinishReason, receipt: Receipt | None) -> None:
        self.finished[reason.value] += 1
        if receipt is None:
            return
        for name in ("prompt_tokens", "cached_tokens", "computed_tokens", "output_tokens"):
            self.tokens[name] += getattr(receipt, name)
        self.by_source.update(msgspec.structs.asdict(receipt.cached_by_source))
        if receipt.miss_reason is not None:
            self.misses[receipt.miss_reason.value] += 1
