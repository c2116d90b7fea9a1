"""People for tests: a time of their own, and passwords that cost little."""

from datetime import UTC, datetime

from argon2 import PasswordHasher

from app.ids import UserId
from app.people.accounts import Accounts
from app.people.passwords import Passwords

QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
WHERE = {"user_agent": "test", "address": "192.0.2.1"}
ADA = "ada@example.org"
PASSWORD = "a long password"


class Clock:
    """A time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return self.now.timestamp()


def quick_passwords() -> Passwords:
    return Passwords(QUICK)


async def make_ada(accounts: Accounts) -> UserId:
    return await accounts.create_user(ADA, "Ada", PASSWORD)
