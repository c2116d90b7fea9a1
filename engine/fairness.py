"""Whose turn it is among owners: a deficit for each, in tokens, inside one class of jobs.

Knows owners and counts of tokens; knows no sequence, no step and no cache. This is deficit round
robin (Shreedhar and Varghese, 1995) with a step as the round: each owner with jobs gains an equal
part of what the step computes for the class, pays for what it computes for himself, and whoever
is owed most goes first. As in the Virtual Token Counter (Sheng et al., OSDI 2024) tokens of
prompts and of replies are charged alike, replies are charged after the fact (so a deficit may turn
into a debt), and whoever comes from doing nothing starts as one who is owed nothing.

Gains are not booked owner by owner: `_level` is what everybody would have been served by equal
parts, `_served` is what each was, on the same scale. The difference is bounded both ways, and of
those who are owed the most that can be, whoever had a turn last comes last.
"""

from engine.api import OwnerId


class Deficits:
    """The owners of one class. `most` bounds what anybody is owed, or owes, in tokens.

    An owner is forgotten with its last job, unless it owes: leaving and coming back pays no debt.
    """

    __slots__ = ("_gone", "_jobs", "_level", "_most", "_served", "_turn", "_turns")

    def __init__(self, most: int) -> None:
        self._most = most
        self._level = 0.0
        self._served: dict[OwnerId, float] = {}
        self._jobs: dict[OwnerId, int] = {}
        self._gone: set[OwnerId] = set()
        self._turn: dict[OwnerId, int] = {}
        self._turns = 0

    def __len__(self) -> int:
        """How many owners are remembered."""
        return len(self._served)

    def join(self, owner_id: OwnerId, *, idle: bool) -> None:
        """One job more. `idle`: until now the owner wanted nothing, and nothing is owed for that."""
        self._jobs[owner_id] = self._jobs.get(owner_id, 0) + 1
        self._gone.discard(owner_id)
        served = self._served.get(owner_id, self._level)
        self._served[owner_id] = max(served, self._level) if idle else served
        if owner_id not in self._turn:
            self.had_turn(owner_id)

    def leave(self, owner_id: OwnerId) -> None:
        """One job fewer."""
        self._jobs[owner_id] -= 1
        if self._jobs[owner_id]:
            return
        del self._jobs[owner_id]
        self._gone.add(owner_id)
        if self._jobs:
            self._forget()
        else:
            self.forgive()

    def place(self, owner_id: OwnerId) -> tuple[float, int]:
        """Where the owner stands in line: what he was served, and when he last had a turn."""
        return self._served_at_least(owner_id), self._turn[owner_id]

    def owed(self, owner_id: OwnerId) -> float:
        """The deficit: how much less than an equal part he was served; negative is a debt."""
        return self._level - self._served_at_least(owner_id)

    def charge(self, owner_id: OwnerId, tokens: int) -> None:
        """Tokens are computed for one of his jobs (or, negative, are not after all)."""
        served = self._served_at_least(owner_id) + tokens
        self._served[owner_id] = served
        # Debts keep their order: who is deepest in debt lifts what is owed to the others.
        self._level = max(self._level, served - self._most)

    def had_turn(self, owner_id: OwnerId) -> None:
        """Of equals he is the last now."""
        self._turns += 1
        self._turn[owner_id] = self._turns

    def settle(self, tokens: int) -> None:
        """A step computes so many for the class, and somebody could have used more."""
        if self._jobs:
            self._level += tokens / len(self._jobs)
            self._forget()

    def forgive(self) -> None:
        """Everybody got all that he wanted: nobody owes, nobody is owed."""
        self._level = 0.0
        self._served = dict.fromkeys(self._jobs, 0.0)
        for owner_id in self._gone:
            del self._turn[owner_id]
        self._gone.clear()

    def _forget(self) -> None:
        for owner_id in [o for o in self._gone if self._served[o] <= self._level]:
            self._gone.remove(owner_id)
            del self._served[owner_id], self._turn[owner_id]

    def _served_at_least(self, owner_id: OwnerId) -> float:
        served, least = self._served[owner_id], self._level - self._most
        return served if served > least else least
