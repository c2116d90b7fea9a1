"""Where traces go: to a collector, for whoever names one; without it OpenTelemetry's calls do nothing.

Spans are made where there is something to tell: a request in `routes.front`, a turn in `chat.record`.
They hold times, counts and ids, and no text, query or address.
"""

import contextlib
from collections.abc import Iterator
from importlib.metadata import version

from opentelemetry import trace

from app.errors import AppError

EXPORT_S = 5.0
"""How long one batch may take; so long does a stop wait for a collector that is away."""


@contextlib.contextmanager
def exporting(url: str | None) -> Iterator[None]:
    """Send the spans of this process to the collector at `url`, the last ones when the block ends.

    Raises `AppError` where the packages for it are not there.
    """
    if url is None:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise AppError(
            "KEEPWARM_TRACES_URL needs packages that are not here: pip install 'keepwarm[otel]'"
        ) from error
    service = {"service.name": "keepwarm", "service.version": version("keepwarm")}
    provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
