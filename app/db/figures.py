"""How long transactions take, and how long they wait to begin: for Prometheus."""

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_KINDS = ("read", "write")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, that nobody reads


class DatabaseFigures:
    """`registry` is what `/metrics` tells of one database, counted since it was opened."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._waits = Histogram(
            "keepwarm_database_wait_seconds",
            "Until a transaction could begin: a connection of the pool, on SQLite the writer's place.",
            ["kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._transactions = Histogram(
            "keepwarm_database_transaction_seconds",
            "From a transaction's beginning to its end, the commit and its flush included.",
            ["kind"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        for kind in _KINDS:
            self._waits.labels(kind)
            self._transactions.labels(kind)

    @contextlib.contextmanager
    def timed(self, kind: str) -> Iterator[Callable[[], None]]:
        """Around a transaction; what it gives is to be called when that has begun."""
        marks = [time.perf_counter()]
        try:
            yield lambda: marks.append(time.perf_counter())
        finally:
            if len(marks) > 1:
                self._waits.labels(kind).observe(marks[1] - marks[0])
                self._transactions.labels(kind).observe(time.perf_counter() - marks[1])
