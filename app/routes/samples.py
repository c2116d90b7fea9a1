"""Figures as they come to one browser socket: a sample at once, and another every two seconds.

A page that reads too slowly gets the newest sample and none of those before it. The watch ends, with an
`error` of its request, when the role is taken away that may see figures, or while the engine is away.
"""

import asyncio

from app.chat.chronicle import Chronicle
from app.frames import FiguresWatched, OutwardFrame
from app.people.audit import Audit
from app.routes.connection import OpenSocket
from app.routes.gate import seeing_figures
from app.routes.problems import as_app_error, error_frame

LIVE_S = 2.0
"""Between two samples."""
FIGURES = "figures"
"""Whose place a sample takes in an outbox."""


class Samples:
    """One per socket. `group` is the socket's task group; the watch ends with it."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        page: OpenSocket[OutwardFrame],
        chronicle: Chronicle,
        audit: Audit,
    ) -> None:
        self._group = group
        self._page = page
        self._chronicle = chronicle
        self._audit = audit
        self._telling: asyncio.Task[None] | None = None

    async def watch(self, request_id: str) -> None:
        """Asked for again it goes on, under the new request. Raises `Forbidden`."""
        seeing_figures(self._page.principal)
        await self._audit.look("figures")
        self.unwatch()
        await self._page.outbox.put(FiguresWatched(request_id=request_id))
        self._telling = self._group.create_task(self._tell(request_id))

    def unwatch(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    async def _tell(self, request_id: str) -> None:
        try:
            await self._go_on_telling()
        except Exception as error:  # noqa: BLE001 -- becomes a frame; logged where unforeseen
            # In the place of a sample that was not sent yet: it is not for this reader any more.
            frame = error_frame(as_app_error(error), request_id)
            await self._page.outbox.renew(FIGURES, frame)

    async def _go_on_telling(self) -> None:
        while True:
            sample = await self._chronicle.now()
            if not await self._page.may_go_on():
                return
            seeing_figures(self._page.principal)
            await self._page.outbox.renew(FIGURES, sample)
            await self._page.while_sure(LIVE_S)
