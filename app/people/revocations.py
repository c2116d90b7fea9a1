"""Tells, at once, whoever relies on a credential or an account that it is gone.

In this process only: what another process revokes is found by the next look (`rights`).
"""

import contextlib
from collections.abc import Callable, Iterator

from app.ids import KeyId, LoginId, UserId

Told = Callable[[], None]


class Revocations:
    def __init__(self) -> None:
        self._watchers: dict[str, list[Told]] = {}

    @contextlib.contextmanager
    def watch(self, told: Told, *subjects: UserId | LoginId | KeyId) -> Iterator[None]:
        """Call `told` whenever one of the subjects is revoked."""
        for subject in subjects:
            self._watchers.setdefault(subject, []).append(told)
        try:
            yield
        finally:
            for subject in subjects:
                self._leave(subject, told)

    def revoke(self, subject: UserId | LoginId | KeyId) -> None:
        for told in tuple(self._watchers.get(subject, ())):
            told()

    def _leave(self, subject: str, told: Told) -> None:
        watchers = self._watchers[subject]
        watchers.remove(told)
        if not watchers:
            del self._watchers[subject]
