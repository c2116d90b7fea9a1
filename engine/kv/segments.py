"""The paths that lower tiers keep, as a tree of segments: what continues what, and what matches.

Knows ids, scopes and names; not which tier has how much room, nor when anything moves. Upholds
laws 8 (ids are compared, a name is never derived from them) and 11 (scopes are compared as well).

A segment is a run of tokens in one scope. Of a path whose operator zone ends at 70, of 700 tokens:

    [0 . 70)  [70 ...... 326)  [326 ..... 582)  [582 .. 700)
    operator   user's           user's           user's, still growing: superseded by a longer one
"""

import heapq
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import msgspec

from engine.api import OwnerId, Scope, Subject, SubjectKind
from engine.kv.pins import LeaseKey
from engine.kv.prefix import Ids, Scopes, is_operators, shared_tokens
from engine.step import BlockId, SegmentHead
from engine.terms import Tier

OPERATOR_KEY: LeaseKey = (OwnerId(""), "")
"""Whose the segments of the operator's zone are, where no persona or document leases them."""


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """Committed tokens in the pool: ids, who may match them, and the blocks that hold them."""

    ids: Ids
    scopes: Scopes
    table: Sequence[BlockId]

    def spans(self, segment_tokens: int, least_tokens: int) -> Iterator[tuple[Scope, int, int]]:
        """Where it is cut: at the borders of scopes, and every so many tokens between.

        What is left at the end is left out where it is less than `least_tokens`.
        """
        start = 0
        for scope, scope_end in self.scopes:
            zone_end = min(scope_end, len(self.ids))
            while start < zone_end:
                end = min(start + segment_tokens, zone_end)
                if end == len(self.ids) and end - start < least_tokens:
                    return
                yield scope, start, end
                start = end


class Segment:
    """One run of a path. `tiers` hold it whole; `moving` transfers read or write it.

    The paths of its `sharers` go through all of it as well, and whether these may lie on disk.
    """

    __slots__ = ("children", "going", "head", "ids", "moving", "parent", "sharers", "tiers", "used")

    def __init__(self, head: SegmentHead, parent: "Segment | None") -> None:
        self.head = head
        self.parent = parent
        self.ids: Ids = array("I", head.token_ids)
        self.children: dict[object, list[Segment]] = {}
        self.sharers: dict[LeaseKey, bool] = {}
        self.tiers: set[Tier] = set()
        self.moving = 0
        self.going = False
        self.used = 0

    @property
    def key(self) -> LeaseKey:
        return self.head.owner_id, self.head.session_id

    @property
    def end(self) -> int:
        return self.head.start + len(self.ids)

    @property
    def nearest(self) -> Tier:
        """Where it is read from."""
        return Tier.HOST if Tier.HOST in self.tiers else Tier.DISK

    def below(self) -> "Iterator[Segment]":
        """The segments that continue it, in no particular order."""
        return chain.from_iterable(self.children.values())


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What lower tiers hold of a path: whole segments in order, of the last one up to `end`."""

    segments: list[Segment]
    end: int


class SegmentTree:
    """All segments by name and by path. `key_tokens`: children are looked up by so many ids."""

    def __init__(self, key_tokens: int) -> None:
        self.root = Segment(_nothing(), None)
        self._key_tokens = key_tokens
        self._segments: dict[str, Segment] = {}
        self._by_key: dict[LeaseKey, dict[Segment, None]] = {}

    def __iter__(self) -> Iterator[Segment]:
        """Every segment, in no order that matters; the tree may be changed meanwhile."""
        return iter(list(self._segments.values()))

    def get(self, name: str) -> Segment | None:
        return self._segments.get(name)

    def of(self, key: LeaseKey) -> list[Segment]:
        """What was written for a subject."""
        return list(self._by_key.get(key, ()))

    def forget(self, subject: Subject) -> list[Segment]:
        """What was written for one subject or all of an owner's, the ends of paths first.

        They share nothing any more.
        """
        whole = subject.kind is SubjectKind.OWNER
        for segment in self:
            for key in [k for k in segment.sharers if k[0] == subject.owner_id]:
                if whole or key[1] == subject.subject_id:
                    del segment.sharers[key]
        own: Iterator[Segment] = iter(self.of((subject.owner_id, subject.subject_id)))
        if subject.kind is SubjectKind.OWNER:
            own = (segment for segment in self if segment.head.owner_id == subject.owner_id)
        return sorted(own, key=lambda segment: -segment.end)

    def find(self, ids: Ids, scopes: Scopes, end: int) -> Found:
        """The longest prefix of `ids[:end]` that lower tiers hold. Changes nothing."""
        segment, position, found = self.root, 0, list[Segment]()
        for scope, scope_end in scopes:
            bound = min(scope_end, end)
            while position < bound:
                child, shared = self._best_child(segment, scope, ids[position:bound])
                if child is None:
                    return Found(segments=found, end=position)
                found.append(child)
                position += shared
                if shared < len(child.ids):
                    return Found(segments=found, end=position)
                segment = child
        return Found(segments=found, end=position)

    def continuation(
        self, parent: Segment, scope: Scope, ids: Ids, whose: tuple[LeaseKey, bool]
    ) -> Segment | None:
        """The child that holds all of `ids`, or is going to; it is shared by `whose` from now on.

        Of another's none that goes on beyond: what that one says there goes when it is forgotten.
        """
        key, durable = whose
        for child, shared in self.candidates(parent, scope, ids):
            if shared < len(ids):
                continue
            if child.key == key or is_operators(scope):
                return child
            if len(child.ids) == len(ids):
                child.sharers[key] = durable
                return child
        return None

    def candidates(self, parent: Segment, scope: Scope, ids: Ids) -> Iterator[tuple[Segment, int]]:
        """Children in the same scope that may continue with `ids`, and how many they share."""
        for key in dict.fromkeys((self._key(scope, ids), self._key(scope, ids[:0]))):
            for child in parent.children.get(key, ()):
                if child.head.scope == scope:
                    yield child, shared_tokens(child.ids, ids)

    def superseded(self, segment: Segment) -> list[Segment]:
        """A path has grown: its shorter last segment, which is part of this one now."""
        assert segment.parent is not None
        beside = self.candidates(segment.parent, segment.head.scope, segment.ids)
        return [
            child
            for child, shared in beside
            if shared == len(child.ids) < len(segment.ids)
            if child.key == segment.key and not (child.children or child.sharers)
        ]

    def link(self, head: SegmentHead, parent: Segment) -> Segment:
        segment = Segment(head, parent)
        parent.children.setdefault(self._key(head.scope, segment.ids), []).append(segment)
        self._segments[head.name] = segment
        self._by_key.setdefault(segment.key, {})[segment] = None
        return segment

    def unlink(self, segment: Segment) -> None:
        """Nobody finds it any more; idempotent."""
        parent = segment.parent
        if parent is None or self._segments.pop(segment.head.name, None) is None:
            return
        self._disown(segment)
        key = self._key(segment.head.scope, segment.ids)
        parent.children[key].remove(segment)
        if not parent.children[key]:
            del parent.children[key]

    def hand_over(self, segment: Segment) -> SegmentHead | None:
        """Give it to whose segment continues it, else to who shares it; its head then.

        None: no other may keep it. Who shares it is known in this life alone. What may lie in memory only does not keep what lies on disk: nobody would delete that after
        a restart.
        """
        durable = segment.head.durable
        heirs = [c.key for c in segment.below() if c.head.durable or not durable]
        heirs += [key for key, may_lie in segment.sharers.items() if may_lie or not durable]
        if not heirs:
            return None
        owner_id, session_id = heirs[0]
        segment.sharers.pop(heirs[0], None)
        self._disown(segment)
        segment.head = msgspec.structs.replace(
            segment.head, owner_id=owner_id, session_id=session_id
        )
        self._by_key.setdefault(segment.key, {})[segment] = None
        return segment.head

    def longest(self, key: LeaseKey) -> tuple[Ids, Scopes] | None:
        """The longest path that was parked for a subject; None: nothing of it is held."""
        own = (segment for segment in self.of(key) if segment.tiers)
        last = max(own, key=lambda segment: segment.end, default=None)
        if last is None:
            return None
        ids: Ids = array("I")
        scopes: list[tuple[Scope, int]] = []
        for segment in _from_root(last):
            ids += segment.ids
            if scopes and scopes[-1][0] == segment.head.scope:
                scopes.pop()
            scopes.append((segment.head.scope, segment.end))
        return ids, tuple(scopes)

    def _disown(self, segment: Segment) -> None:
        own = self._by_key[segment.key]
        del own[segment]
        if not own:
            del self._by_key[segment.key]

    def _best_child(self, parent: Segment, scope: Scope, ids: Ids) -> tuple[Segment | None, int]:
        """The child that shares most with `ids`, of those that are whole somewhere."""
        best, most = None, 0
        for child, shared in self.candidates(parent, scope, ids):
            if child.tiers and shared > most:
                best, most = child, shared
        return best, most

    def _key(self, scope: Scope, ids: Ids) -> object:
        """What children are looked up by; short ones are few and found by their scope."""
        long = len(ids) >= self._key_tokens
        return scope, ids[: self._key_tokens].tobytes() if long else b""


def _from_root(segment: Segment) -> list[Segment]:
    path: list[Segment] = []
    while segment.parent is not None:
        path.append(segment)
        segment = segment.parent
    return path[::-1]


def _nothing() -> SegmentHead:
    """What the first segment of a path continues."""
    return SegmentHead(
        name="",
        parent="",
        scope=Scope(""),
        start=0,
        token_ids=(),
        owner_id=OPERATOR_KEY[0],
        session_id=OPERATOR_KEY[1],
    )


class Ages:
    """Which segments leave a tier next: those that were unused for longest."""

    def __init__(self, tree: SegmentTree) -> None:
        self._tree = tree
        self._queues: defaultdict[Tier, list[tuple[int, str]]] = defaultdict(list)

    def add(self, segment: Segment, tier: Tier) -> None:
        heapq.heappush(self._queues[tier], (segment.used, segment.head.name))

    def take(self, tier: Tier, may_leave: Callable[[Segment], bool]) -> Segment | None:
        """The next that may, out of the queue; keys in it may be too low."""
        queue, passed, oldest = self._queues[tier], [], None
        while queue and oldest is None:
            used, name = heapq.heappop(queue)
            segment = self._tree.get(name)
            if segment is None or tier not in segment.tiers:
                continue
            if segment.used != used:
                heapq.heappush(queue, (segment.used, name))
            elif may_leave(segment):
                oldest = segment
            else:
                passed.append((used, name))
        for age in passed:
            heapq.heappush(queue, age)
        return oldest
