"""`python -m tests.chaos.unscoped serve`: the server with one scope for all users, which is a leak.

What looks for a leak (`tenants`) must find this one.
"""

from app.__main__ import main
from app.chat import prompt
from engine.api import Scope


def everybodys(_: str) -> Scope:
    """Whatever a user's own scope would be."""
    return Scope("user:everybody")


if __name__ == "__main__":
    prompt.Scope = everybodys  # type: ignore[assignment, attr-defined]  # where a user's own zone is made
    main(prog_name="keepwarm")
