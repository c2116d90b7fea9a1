"""What was evicted and asked for again soon after: how often letting go was the wrong choice.

Remembers, for a while and up to a bound, evicted blocks as hashes: of their ids and of those that
came right before. No id is kept; a hash is Python's own, keyed anew in every process. That two
paths agree in place, scope and so many ids and differ before is as good as impossible, and would
only spoil a figure.
"""

from array import array
from collections import OrderedDict

from engine.kv.prefix import Entry, Ids, Scopes
from engine.terms import Scope

REGRET_S = 600.0
"""Who asks again within it would have been served: 95 % of the gaps between the turns of a
conversation are shorter (Mooncake FAST 25 conversation trace)."""

REMEMBERED_PIECES = 16_384

BEFORE_TOKENS = 64
"""So many ids before a piece are part of its hash."""

Name = tuple[Scope, int, int, int]
"""Where a piece of a path lies (scope, start, end) and what it was (a hash)."""


class Regret:
    """Counts in `tokens` what prompts missed only because it had been evicted.

    It is a lower bound: the memory has an end, and a prompt that goes on where nothing was cut off
    is not looked for.
    """

    def __init__(self, block_tokens: int) -> None:
        self.tokens = 0
        self._block_tokens = block_tokens
        # Oldest first; `_ends` says, for each place that a piece starts at, where pieces end.
        self._pieces: OrderedDict[Name, float] = OrderedDict()
        self._ends: dict[int, dict[int, int]] = {}

    def remember(self, scope: Scope, ids: Ids, span: tuple[int, int], now: float) -> None:
        """Positions `[start, end)` of a path are evicted.

        `ids` end there, and begin `BEFORE_TOKENS` or more before it, or with the path.
        """
        start, end = span
        # Once as bytes: this is done for every block that is evicted, asked for again or not.
        known, size, origin = ids.tobytes(), ids.itemsize, end - len(ids)
        while start < end:
            stop = min(end, (start // self._block_tokens + 1) * self._block_tokens)
            first = max(0, start - BEFORE_TOKENS - origin)
            name = scope, start, stop, hash(known[first * size : (stop - origin) * size])
            if self._pieces.pop(name, None) is None:
                ends = self._ends.setdefault(start, {})
                ends[stop] = ends.get(stop, 0) + 1
            self._pieces[name] = now
            start = stop
        while len(self._pieces) > REMEMBERED_PIECES:
            self._drop(next(iter(self._pieces)))

    def ask(self, ids: Ids, scopes: Scopes, span: tuple[int, int], now: float) -> None:
        """A prompt has to compute positions `[start, end)`, for they are not cached."""
        while self._pieces and now - next(iter(self._pieces.values())) > REGRET_S:
            self._drop(next(iter(self._pieces)))
        if not self._pieces:
            return
        stop, (missing, end) = None, span
        # Where a path was cut off, others that begin alike may have brought back a little of it.
        for start in range(missing, missing - missing % self._block_tokens - 1, -1):
            stop = self._take(ids, scopes, start, (missing + 1, end))
            if stop is not None:
                break
        while stop is not None:
            self.tokens += stop - missing
            missing = stop
            stop = self._take(ids, scopes, missing, (missing + 1, end))

    def _take(self, ids: Ids, scopes: Scopes, start: int, stops: tuple[int, int]) -> int | None:
        """Where the piece ends that the ids go on with at `start`; it is forgotten by this."""
        for stop in sorted(self._ends.get(start, ()), reverse=True):
            if stops[0] <= stop <= stops[1]:
                scope = next(scope for scope, scope_end in scopes if start < scope_end)
                known = ids[max(0, start - BEFORE_TOKENS) : stop].tobytes()
                name = scope, start, stop, hash(known)
                if name in self._pieces:
                    self._drop(name)
                    return stop
        return None

    def _drop(self, name: Name) -> None:
        del self._pieces[name]
        _, start, stop, _ = name
        ends = self._ends[start]
        ends[stop] -= 1
        if not ends[stop]:
            del ends[stop]
        if not ends:
            del self._ends[start]


def end_of_path(entry: Entry, tokens: int) -> Ids:
    """The last ids of the path that ends with an entry, so many as there are."""
    ids: Ids = array("I")
    for above in entry.path():
        if len(ids) >= tokens:
            break
        ids = above.ids[len(ids) - tokens :] + ids
    return ids
