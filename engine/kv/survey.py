"""What the cache shows of itself: every session and every entry, in sizes, never in ids."""

from collections import Counter
from collections.abc import Iterable

from engine.api import SubjectKind
from engine.figures import CacheSnapshot, PrefixNode, SessionView
from engine.kv.blocks import BlockPool
from engine.kv.leases import NO_SESSION, Leases
from engine.kv.pins import Lease, LeaseKey
from engine.kv.prefix import Entry, PrefixIndex, is_operators
from engine.kv.retention import retention_of
from engine.kv.tiers import Tiers
from engine.step import BlockId
from engine.terms import RetentionClass, SessionId, Tier


def snapshot(
    index: PrefixIndex, leases: Leases, tiers: Tiers, *, pool: BlockPool, now: float
) -> CacheSnapshot:
    """All that the pool and the lower tiers hold, as of `now`."""
    entries = list(index.entries())
    classes = _classes(entries)
    return CacheSnapshot(
        sequence_number=tiers.journal.last,
        blocks=pool.counts(),
        pinned_blocks=_pinned_blocks(entries, classes),
        tiers=tiers.counts(),
        sessions=_sessions(leases, tiers, now),
        nodes=tuple(_node(entry, index.root, pool, classes[entry]) for entry in entries),
    )


def _sessions(leases: Leases, tiers: Tiers, now: float) -> tuple[SessionView, ...]:
    parked = _parked(tiers)
    known: dict[LeaseKey, Lease | None] = dict.fromkeys(key for key, _ in parked)
    known.update((lease.key, lease) for lease in leases)
    return tuple(
        _session(key, lease, parked, now)
        for key, lease in known.items()
        if key[1] != NO_SESSION
        if lease is None or lease.kind is SubjectKind.SESSION
    )


def _parked(tiers: Tiers) -> dict[tuple[LeaseKey, Tier], int]:
    """How long the longest path is that a lower tier holds for a subject."""
    longest: dict[tuple[LeaseKey, Tier], int] = {}
    for segment in tiers:
        for tier in segment.tiers if not is_operators(segment.head.scope) else ():
            key = segment.key, tier
            longest[key] = max(segment.end, longest.get(key, 0))
    return longest


def _session(
    key: LeaseKey, lease: Lease | None, parked: dict[tuple[LeaseKey, Tier], int], now: float
) -> SessionView:
    expires_s = lease.expires_s if lease else None
    return SessionView(
        session_id=SessionId(key[1]),
        owner_id=key[0],
        wished=lease.wished if lease else None,
        retention=lease.retention if lease else RetentionClass.ORPHAN,
        expires_in_s=None if expires_s is None else max(0.0, expires_s - now),
        idle_s=max(0.0, now - lease.used_s) if lease else None,
        cached_tokens=lease.cached_tokens if lease else 0,
        host_tokens=parked.get((key, Tier.HOST), 0),
        disk_tokens=parked.get((key, Tier.DISK), 0),
    )


def _classes(entries: Iterable[Entry]) -> dict[Entry, RetentionClass]:
    """The highest class at an entry and below it; parents come before their children."""
    classes = {entry: retention_of(entry) for entry in entries}
    for entry in reversed(classes):
        parent = entry.parent
        if parent in classes:
            classes[parent] = max(classes[parent], classes[entry])
    return classes


def _pinned_blocks(
    entries: Iterable[Entry], classes: dict[Entry, RetentionClass]
) -> dict[RetentionClass, int]:
    strongest: dict[BlockId, RetentionClass] = {}
    for entry in entries:
        for block in entry.blocks if entry.pins else ():
            strongest[block] = max(classes[entry], strongest.get(block, classes[entry]))
    return dict(Counter(strongest.values()))


def _node(entry: Entry, root: Entry, pool: BlockPool, retention: RetentionClass) -> PrefixNode:
    in_use = any(pool.users(block) for block in entry.blocks)
    parent = entry.parent
    return PrefixNode(
        node_id=entry.entry_id,
        parent_id=parent.entry_id if parent and parent is not root else None,
        scope=entry.scope,
        tokens=len(entry.ids),
        blocks=len(entry.blocks),
        in_use=in_use,
        retention=RetentionClass.RUNNING if in_use else retention,
    )
