"""Figures over time for administrators and auditors: `/api/admin/figures`, and as they come.

A page draws what it was told of the past and goes on with what comes by its socket (`samples`), or with
the stream where websockets are blocked.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Annotated, Any

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import ServerSentEvent

from app.chat.chronicle import Chronicle, FiguresOverTime
from app.events import Figures
from app.people.audit import Audit
from app.routes.gate import Gate
from app.routes.published.told import EVENT_STREAM, told
from app.routes.samples import FIGURES, LIVE_S
from app.routes.streams import Asked, Frames, stream
from engine.errors import EngineError

DAY_S = 86_400


@get("/admin/figures")
async def read_figures(
    chronicle: NamedDependency[Chronicle],
    since_s: Annotated[int, QueryParameter(ge=1, le=DAY_S)] = 900,
) -> FiguresOverTime:
    """The engine's counters over the last seconds. What was before the server's start is not known."""
    return await chronicle.history(since_s)


@get("/admin/figures/events", opt=told(gives={EVENT_STREAM: Figures}))
async def watch_figures(
    request: Asked,
    gate: NamedDependency[Gate],
    chronicle: NamedDependency[Chronicle],
    audit: NamedDependency[Audit],
) -> ServerSentEvent:
    """A sample at once, and another every two seconds; the stream ends while the engine is away."""
    await audit.look("figures")

    @contextlib.asynccontextmanager
    async def tell(outbox: Frames) -> AsyncIterator[Sequence[Coroutine[Any, Any, object]]]:
        yield (_tell(chronicle, outbox),)

    return await stream(request, gate, tell)


async def _tell(chronicle: Chronicle, outbox: Frames) -> None:
    with contextlib.suppress(EngineError):
        while True:
            await outbox.renew(FIGURES, await chronicle.now())
            await asyncio.sleep(LIVE_S)


figure_handlers = [read_figures, watch_figures]
