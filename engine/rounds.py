"""A step while it is put together, and one class's part of it: who has what, and whose turn it is.

Plain state and its bookkeeping; who gets a seat and who gives way, the scheduler decides.
"""

from collections import deque

from engine.api import OwnerId
from engine.sequence import Sequence, Status


class Step:
    """A step being put together: how many ids each sequence computes, and the budget left.

    Of what waits, `put_off` is passed over, and `refused` is to end.
    """

    __slots__ = ("admitted", "budget", "put_off", "refused", "shares")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.put_off: set[Sequence] = set()
        self.shares: dict[Sequence, int] = {}
        self.admitted: list[Sequence] = []
        self.refused: list[Sequence] = []

    def give(self, sequence: Sequence, most: int) -> int:
        """Up to `most` more of the sequence's pending ids, as the budget allows; how many."""
        count = self.wanted(sequence)
        if not sequence.canonical_tokens:
            count = min(self.budget, most, count)
        if count:
            self.shares[sequence] = self.shares.get(sequence, 0) + count
            self.budget -= count
        return count

    def wanted(self, sequence: Sequence) -> int:
        """How many more ids the sequence could be given; canonical passes are given whole."""
        given = self.shares.get(sequence, 0)
        if not sequence.canonical_tokens:
            return sequence.pending - given
        return 0 if given or sequence.piece > self.budget else sequence.piece


class Round:
    """One class's part of a step.

    `turns` is a heap of owners, who is owed most on top. `prefills` are those of an owner's
    sequences that run and want more. `line` is a heap of the owners who wait and have no seat, who
    is to have the next one on top. `opens`: somebody may still be seated.
    """

    __slots__ = ("line", "opens", "prefills", "rank", "turns")

    def __init__(self, rank: int, *, opens: bool) -> None:
        self.rank = rank
        self.opens = opens
        self.prefills: dict[OwnerId, deque[Sequence]] = {}
        self.turns: list[tuple[tuple[float, int], OwnerId]] = []
        self.line: list[tuple[bool, tuple[float, int], OwnerId]] = []

    def prefill(self, step: Step, owner_id: OwnerId) -> Sequence | None:
        """The owner's first sequence that runs and is not yet given all that it wants."""
        queue = self.prefills.get(owner_id)
        while queue:
            sequence = queue[0]
            if sequence.status is Status.RUNNING and step.wanted(sequence):
                return sequence
            queue.popleft()
        return None
