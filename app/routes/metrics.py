"""The engine's figures as Prometheus reads them, under the names that the field's dashboards expect.

Names and units follow vLLM's where it has the figure (its prefix is `vllm:`, ours `keepwarm_`): what
differs is a label, never a name; seconds and bytes; counters end in `_total`, and every series is
there from the start. Counters only: readers divide. `docs/metrics.md` is written from this.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, product
from typing import TypeVar

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.api import CacheSource, FinishReason, MissReason, ModelCard, RetentionClass, Stats
from engine.figures import EvictionReason, Histogram

K = TypeVar("K", bound=str)


class EngineCollector(Collector):
    """One look at the engine's counters."""

    def __init__(self, card: ModelCard, stats: Stats, open_sockets: int) -> None:
        self._card = card
        self._stats = stats
        self._open_sockets = open_sockets

    def collect(self) -> Iterator[Metric]:
        yield from self._prompts()
        yield from self._blocks()
        yield from self._tiers()
        yield from self._drafts()
        yield from self._times()
        yield from self._work()
        yield self._what()

    def _prompts(self) -> Iterator[Metric]:
        stats = self._stats
        yield _counters(
            "prefix_cache_queries",
            "Prompt tokens that were looked up, by whose zone they lie in.",
            "source",
            _every(CacheSource, stats.prompt_by_source),
        )
        yield _counters(
            "prefix_cache_hits",
            "Prompt tokens that were found, by whose zone they lie in.",
            "source",
            msgspec.structs.asdict(stats.cached_by_source),
        )
        yield _counters(
            "prefix_cache_misses",
            "Turns that computed more than what was new, by the reason that their receipts give.",
            "reason",
            _every(MissReason, stats.misses),
        )
        yield _counters(
            "prompt_tokens",
            "Prompt tokens, by how they came: cached in the pool, restored from a lower tier, computed.",
            "origin",
            {
                "cached": stats.cached_tokens - stats.restored_tokens,
                "restored": stats.restored_tokens,
                "computed": stats.computed_tokens,
            },
        )
        yield _counter("generation_tokens", "Tokens written.", stats.output_tokens)
        later = stats.later_turns
        yield _counters(
            "known_prompt_tokens",
            "Prompt tokens of later turns that their conversation had before, found in the cache or lost.",
            "outcome",
            {"found": later.found_tokens, "lost": later.known_tokens - later.found_tokens},
        )
        yield _counter(
            "prefill_saved_seconds",
            "What computing the cached tokens would have taken, as prefill was measured; an estimate.",
            stats.saved_s,
        )

    def _blocks(self) -> Iterator[Metric]:
        stats = self._stats
        yield _gauges(
            "kv_blocks",
            "Blocks of the pool by state; they sum to all.",
            "state",
            msgspec.structs.asdict(stats.blocks),
        )
        yield _counter(
            "kv_published_tokens",
            "Tokens that became matchable. Less those evicted: how many are now.",
            stats.published_tokens,
        )
        blocks, tokens = (
            CounterMetricFamily(
                f"keepwarm_kv_evicted_{unit}",
                f"{unit.capitalize()} that left the pool, by retention class and reason: "
                "room was needed (pressure; quota: of a lease whose pin was refused), or forgotten.",
                labels=["retention", "reason"],
            )
            for unit in ("blocks", "tokens")
        )
        known = {(one.retention, one.reason): one for one in stats.evictions}
        for retention, reason in product(RetentionClass, EvictionReason):
            one = known.get((retention, reason))
            labels = [retention.name.lower(), reason.value]
            blocks.add_metric(labels, one.blocks if one else 0)
            tokens.add_metric(labels, one.tokens if one else 0)
        yield from (blocks, tokens)
        yield _counter(
            "kv_regretted_tokens",
            "Tokens that were evicted and missing in a prompt within 10 minutes; a lower bound.",
            stats.regretted_tokens,
        )
        yield _counter(
            "lease_degradations",
            "Pins that were refused or taken back for want of budget.",
            stats.degradations,
        )

    def _tiers(self) -> Iterator[Metric]:
        tiers = self._stats.tiers
        used = {tier.tier: tier.used_bytes for tier in tiers}
        limits = {tier.tier: tier.limit_bytes for tier in tiers}
        held = {tier.tier: tier.segments for tier in tiers}
        yield _gauges("kv_tier_bytes", "KV parked in a lower tier.", "tier", used)
        yield _gauges("kv_tier_limit_bytes", "How much it may hold.", "tier", limits)
        yield _gauges("kv_tier_segments", "In how many segments.", "tier", held)
        yield _counters(
            "kv_segments",
            "Segments by what became of them: parked, spilled to disk, restored; damaged or of other "
            "weights when read or found at the start, failed to be written, let go.",
            "change",
            self._stats.segments,
        )

    def _drafts(self) -> Iterator[Metric]:
        drafts = self._stats.drafts
        yield _counter("draft_computed_tokens", "Tokens computed for unsent text.", drafts.computed)
        yield _counters(
            "draft_settled_tokens",
            "Of these, what a turn found (used), and what none will (wasted).",
            "outcome",
            {"used": drafts.used, "wasted": drafts.wasted},
        )
        yield _gauge("draft_waiting_tokens", "The rest: their turn is to come.", drafts.waiting)

    def _times(self) -> Iterator[Metric]:
        stats = self._stats
        first = HistogramMetricFamily(
            "keepwarm_time_to_first_token_seconds",
            "From a turn's submission to its first token, by how much of its prompt was cached: "
            "nothing, below half, below nine tenths, more.",
            labels=["cached_share"],
        )
        for share, histogram in stats.first_token_s.items():
            first.add_metric([share.value], _buckets(histogram), histogram.sum)
        yield first
        yield _histogram("request_queue_time_seconds", "Turns waiting for blocks.", stats.queue_s)
        yield _histogram("request_prefill_time_seconds", "Turns in prefill.", stats.prefill_s)

    def _work(self) -> Iterator[Metric]:
        stats = self._stats
        yield _gauge("num_requests_running", "Jobs that hold blocks.", stats.running_jobs)
        yield _gauge("num_requests_waiting", "Jobs in the queue.", stats.waiting_jobs)
        yield _gauge("sockets_open", "Websockets that are open.", self._open_sockets)
        yield _counters(
            "requests",
            "Jobs by how they ended.",
            "finished_reason",
            _every(FinishReason, stats.finished_jobs),
        )
        yield _counter("num_preemptions", "Jobs set back to make room.", stats.preemptions)
        yield _counter(
            "engine_restarts", "Times that the engine's process was lost.", stats.restarts
        )
        yield _counter("engine_steps", "Forward passes.", stats.steps)
        yield _counter("engine_step_seconds", "Time in forward passes.", stats.step_s)
        yield _counter("cache_seconds", "Time in the cache's own work.", stats.cache_s)

    def _what(self) -> Metric:
        card = self._card
        labels = {
            "model": card.name,
            "dtype": card.dtype,
            "device": card.device,
            "attention": card.attention,
        }
        family = GaugeMetricFamily(
            "keepwarm_engine_info", "Always 1: its labels say what computes.", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1)
        return family


def _every(kinds: Iterable[K], counts: Mapping[K, int]) -> dict[K, int]:
    return {kind: counts.get(kind, 0) for kind in kinds}


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(f"keepwarm_{name}", words, value=value)


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"keepwarm_{name}", words, value=value)


def _histogram(name: str, words: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(f"keepwarm_{name}", words, labels=[])
    family.add_metric([], _buckets(histogram), histogram.sum)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus counts up: each bucket has all that the ones before it have."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


def _counters(name: str, words: str, label: str, values: Mapping[K, int]) -> Metric:
    family = CounterMetricFamily(f"keepwarm_{name}", words, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gauges(name: str, words: str, label: str, values: Mapping[K, int]) -> Metric:
    family = GaugeMetricFamily(f"keepwarm_{name}", words, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
