"""Pages without a socket: each is an event stream, and stands for as long as that is open.

What a socket says in frames such a page says in requests that name it: how it shows a conversation,
and what is typed there. With its stream it is gone, and so is all that it said.
"""

import contextlib
import secrets
from collections.abc import Iterator

import msgspec

from app.chat.drafts import Drafts, Typist
from app.chat.liveness import Liveness, Presence
from app.errors import NotFound
from app.ids import UserId


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`page_id` is a secret of who opened it."""

    page_id: str
    presence: Presence
    typist: Typist


class Pages:
    """One per server; no more than streams are open."""

    def __init__(self, liveness: Liveness, drafts: Drafts) -> None:
        self._liveness = liveness
        self._drafts = drafts
        self._pages: dict[str, Page] = {}

    @contextlib.contextmanager
    def open(self, user_id: UserId) -> Iterator[Page]:
        page_id = f"page_{secrets.token_urlsafe(16)}"
        with (
            self._liveness.page(user_id) as presence,
            self._drafts.typist(user_id) as typist,
        ):
            self._pages[page_id] = Page(page_id=page_id, presence=presence, typist=typist)
            try:
                yield self._pages[page_id]
            finally:
                del self._pages[page_id]

    def find(self, user_id: UserId, page_id: str) -> Page:
        """Raises `NotFound`: its stream is over, or it is another's."""
        page = self._pages.get(page_id)
        if page is None or page.presence.user_id != user_id:
            raise NotFound("There is no such page; open the event stream again.", field="page_id")
        return page
