"""Measures the cache's own work (law 12): a decorator for its verbs, and nothing that decides."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Metered(Protocol):
    """`meter` returns seconds; `spent_s` sums up what was measured."""

    meter: Callable[[], float]
    spent_s: float


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Metered)


def metered(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Adds the time that a verb takes to its object's `spent_s`."""

    def timed(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        before = self.meter()
        try:
            return verb(self, *args, **kwargs)
        finally:
            self.spent_s += self.meter() - before

    update_wrapper(timed, verb)
    return timed
