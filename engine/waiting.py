"""What waits for a seat: a queue for each class and owner.

Knows sequences and their order; decides nothing. Of one owner comes first what was preempted, then
whatever came first.
"""

from collections import deque

from engine.api import OwnerId
from engine.sequence import RANKS, Sequence


class Waiting:
    """Every sequence that waits; its length is how many do."""

    __slots__ = ("_length", "_queues")

    def __init__(self) -> None:
        self._queues: tuple[dict[OwnerId, deque[Sequence]], ...] = tuple({} for _ in RANKS)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def of(self, rank: int) -> dict[OwnerId, deque[Sequence]]:
        """Each owner's queue; none is empty."""
        return self._queues[rank]

    def add(self, sequence: Sequence) -> None:
        """Behind whoever has the same owner, but before these where it ran already."""
        queue = self._queues[sequence.rank].setdefault(sequence.owner_id, deque())
        before = len(queue)
        if sequence.turn:
            before = sum(1 for other in queue if 0 < other.turn < sequence.turn)
        queue.insert(before, sequence)
        self._length += 1

    def remove(self, sequence: Sequence) -> None:
        queues = self._queues[sequence.rank]
        queues[sequence.owner_id].remove(sequence)
        if not queues[sequence.owner_id]:
            del queues[sequence.owner_id]
        self._length -= 1

    def crowded_by(self, sequence: Sequence) -> Sequence | None:
        """What gives its place in a full queue to this one: the newest of whoever has most.

        Weaker classes give way first. In its own class only who has at least two more than its
        owner, who then has no more than he. What ran already, keeps its place.
        """
        own = len(self._queues[sequence.rank].get(sequence.owner_id, ()))
        for rank in range(len(RANKS) - 1, sequence.rank - 1, -1):
            least = own + 2 if rank == sequence.rank else 1
            queues = [queue for queue in self._queues[rank].values() if len(queue) >= least]
            for queue in sorted(queues, key=len, reverse=True):
                if not queue[-1].turn:
                    return queue[-1]
        return None
