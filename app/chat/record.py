"""What is kept of a turn that ended, beside its rows: a line in the log, figures for Prometheus, a span.

Times, counts and ids, never a text. The names of `gen_ai_*` are OpenTelemetry's conventions for
generative AI, written as Prometheus writes them; their buckets are those that the conventions name.
The request that asked is in the line, and above the span, by the context that its task was made in.
"""

import logging

from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from app.events import ResponseStatus, ResponseView

LOG = logging.getLogger(__name__)
tracer = trace.get_tracer("keepwarm.turns")

LOGGED = "turn"
"""Under this name a log line has what is told of a turn; it is the only one that is let through."""
PROVIDER = "keepwarm"
OPERATION = "chat"

_REQUEST = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_DURATION_S = tuple(0.01 * 2**power for power in range(14))
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = tuple(4**power for power in range(14))

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, that nobody reads


class Record:
    """`registry` is what `/metrics` tells of turns; counted since the server's start."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._turns = Counter(
            "keepwarm_turns", "Turns by how they ended.", ["status"], registry=registry
        )
        for status in ResponseStatus:
            if status.ended:
                self._turns.labels(status)
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From a turn's acceptance to its end, by the error that ended it, where one did.",
            [*_REQUEST, "error_type"],
            buckets=_DURATION_S,
            registry=registry,
        )
        self._first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From a turn's submission to its first token.",
            _REQUEST,
            buckets=_FIRST_S,
            registry=registry,
        )
        self._token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Time for each token after the first, on average over a turn.",
            _REQUEST,
            buckets=_TOKEN_S,
            registry=registry,
        )
        self._tokens = Histogram(
            "gen_ai_client_token_usage",
            "Tokens of a turn: its prompt, cached or not (input), and what was written (output).",
            [*_REQUEST, "gen_ai_token_type"],
            buckets=_TOKENS,
            registry=registry,
        )

    def expect(self, model: str) -> None:
        """Tell of a model from the start, though nobody asked it anything yet."""
        request = (OPERATION, PROVIDER, model)
        self._duration.labels(*request, "")
        self._first_token.labels(*request)
        self._token.labels(*request)
        for kind in ("input", "output"):
            self._tokens.labels(*request, kind)

    def ended(self, view: ResponseView) -> None:
        """Keep what there is to keep of a response that was stored as ended."""
        duration_s = max(0.0, (view.completed_at or view.created_at) - view.created_at)
        error = view.error.code if view.error is not None else ""
        request = (OPERATION, PROVIDER, view.model)
        self._turns.labels(view.status).inc()
        self._duration.labels(*request, error).observe(duration_s)
        if view.usage is not None:
            self._tokens.labels(*request, "input").observe(view.usage.input_tokens)
            self._tokens.labels(*request, "output").observe(view.usage.output_tokens)
        receipt = view.receipt
        if receipt is not None and receipt.first_token_s is not None:
            self._first_token.labels(*request).observe(receipt.first_token_s)
            if receipt.output_tokens > 1:
                after_s = receipt.total_s - receipt.first_token_s
                self._token.labels(*request).observe(after_s / (receipt.output_tokens - 1))
        _trace(view, duration_s)
        told = {
            "response_id": view.id,
            "status": view.status.value,
            "error": error or None,
            "seconds": round(duration_s, 4),
            "first_token_s": receipt.first_token_s if receipt else None,
            "input_tokens": view.usage.input_tokens if view.usage else None,
            "cached_tokens": view.usage.cached_tokens if view.usage else None,
            "output_tokens": view.usage.output_tokens if view.usage else None,
        }
        LOG.info("turn ended", extra={LOGGED: told})


def _trace(view: ResponseView, duration_s: float) -> None:
    """One span for the turn, and below it one for each phase that its receipt tells of."""
    usage, receipt = view.usage, view.receipt
    told: dict[str, str | int | None] = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": view.model,
        "gen_ai.response.id": view.id,
        "gen_ai.conversation.id": view.conversation_id,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage else None,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "keepwarm.status": view.status.value,
        "keepwarm.miss_reason": receipt.miss_reason if receipt else None,
        "error.type": view.error.code if view.error else None,
    }
    span = tracer.start_span(
        f"{OPERATION} {view.model}",
        start_time=_nanoseconds(view.created_at),
        attributes={name: value for name, value in told.items() if value is not None},
    )
    if view.error is not None:
        span.set_status(trace.StatusCode.ERROR)
    if receipt is not None:
        prefill_s = receipt.queue_s + receipt.prefill_s
        phases = {"queue": (0.0, receipt.queue_s), "prefill": (receipt.queue_s, prefill_s)}
        if receipt.first_token_s is not None:
            phases["decode"] = (receipt.first_token_s, max(receipt.first_token_s, receipt.total_s))
        for name, (start_s, end_s) in phases.items():
            phase = tracer.start_span(
                name,
                context=trace.set_span_in_context(span),
                start_time=_nanoseconds(view.created_at + start_s),
            )
            phase.end(_nanoseconds(view.created_at + end_s))
    span.end(_nanoseconds(view.created_at + duration_s))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
