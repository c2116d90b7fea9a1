"""Passwords: argon2id, in worker threads, two at a time.

Verifying costs the same whether the account exists or not. Nothing here knows an account, and no
password is kept, logged or shown.
"""

import asyncio
import base64
import unicodedata

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from app.errors import InvalidRequest
from app.options import LONGEST_PASSWORD, SHORTEST_PASSWORD

_AT_ONCE = 2
"""Each hash takes 64 MiB and a core for a moment; a crowd at the door may not take them all."""


class Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def hash(self, password: str) -> str:
        """Raises `InvalidRequest` for a password that is too short or too long."""
        password = _prepare(password)
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise InvalidRequest(
                f"A password has {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters.",
                field="password",
            )
        async with self._places:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def verify(self, encoded: str | None, password: str) -> bool:
        """Whether it is the password behind `encoded`; None or "" is nobody's, at equal cost."""
        password = _prepare(password)
        if len(password) > LONGEST_PASSWORD:
            return False
        async with self._places:
            matches = await asyncio.to_thread(self._matches, encoded or self.of_nobody, password)
        return matches and bool(encoded)

    @property
    def of_nobody(self) -> str:
        """What no password is hashed to, and costs as much to find out; made without hashing one."""
        made = self._hasher
        cost = f"m={made.memory_cost},t={made.time_cost},p={made.parallelism}"
        salt, digest = (_encode(bytes(length)) for length in (made.salt_len, made.hash_len))
        return f"$argon2id$v={ARGON2_VERSION}${cost}${salt}${digest}"

    def is_outdated(self, encoded: str) -> bool:
        """Whether it was hashed with weaker parameters than today's."""
        return self._hasher.check_needs_rehash(encoded)

    def _matches(self, encoded: str, password: str) -> bool:
        try:
            return self._hasher.verify(encoded, password)
        except (VerificationError, InvalidHashError):
            return False


def _encode(raw: bytes) -> str:
    """As the encoded form of a hash has it: base64 without padding."""
    return base64.b64encode(raw).rstrip(b"=").decode()


def _prepare(password: str) -> str:
    # NFKC, so that one password typed on two keyboards is one (NIST SP 800-63B, 3.1.1.2).
    return unicodedata.normalize("NFKC", password)
