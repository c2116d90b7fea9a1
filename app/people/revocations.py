"""Tells open sockets, at once, that what let them in is gone.

In this process only: what another process revokes is met when a socket's next frame is checked.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from app.ids import KeyId, LoginId, UserId


class Revocations:
    def __init__(self) -> None:
        self._watchers: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def watch(self, *subjects: UserId | LoginId | KeyId) -> Iterator[asyncio.Event]:
        """An event that is set once any of the subjects is revoked.

        Resolve the credential after entering: what was revoked before is not told again.
        """
        revoked = asyncio.Event()
        for subject in subjects:
            self._watchers.setdefault(subject, set()).add(revoked)
        try:
            yield revoked
        finally:
            for subject in subjects:
                self._leave(subject, revoked)

    def revoke(self, subject: UserId | LoginId | KeyId) -> None:
        for revoked in self._watchers.get(subject, ()):
            revoked.set()

    def _leave(self, subject: str, revoked: asyncio.Event) -> None:
        watchers = self._watchers[subject]
        watchers.discard(revoked)
        if not watchers:
            del self._watchers[subject]
