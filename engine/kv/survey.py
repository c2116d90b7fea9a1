"""What the cache shows of itself: every session and every entry, in sizes, never in ids."""

from collections import Counter
from collections.abc import Iterable

from engine.api import SubjectKind
from engine.figures import CacheSnapshot, PrefixNode, SessionView
from engine.kv.blocks import BlockPool
from engine.kv.leases import NO_SESSION, Leases
from engine.kv.pins import PUBLISHED, Lease, LeaseKey
from engine.kv.prefix import Entry, PrefixIndex, is_operators
from engine.kv.retention import retention_of
from engine.kv.tiers import Tiers
from engine.step import BlockId
from engine.terms import RetentionClass, SessionId, Tier


def snapshot(
    index: PrefixIndex | None,
    leases: Leases,
    tiers: Tiers,
    *,
    pool: BlockPool,
    block_tokens: int,
    now: float,
) -> CacheSnapshot:
    """All that the pool and the lower tiers hold, as of `now`; the entries where there is an index."""
    entries = [] if index is None else list(index.entries())
    classes, paths = _classes(entries), _paths(entries)
    return CacheSnapshot(
        sequence_number=tiers.journal.last,
        blocks=pool.counts(),
        pinned_blocks=_pinned_blocks(entries, classes),
        tiers=tiers.counts(),
        sessions=_sessions(leases, tiers, block_tokens, now),
        nodes=tuple(
            _node(entry, pool, classes[entry], paths=paths[entry], now=now) for entry in entries
        ),
    )


def _sessions(
    leases: Leases, tiers: Tiers, block_tokens: int, now: float
) -> tuple[SessionView, ...]:
    parked = _parked(tiers)
    known: dict[LeaseKey, Lease | None] = dict.fromkeys(key for key, _ in parked)
    known.update((lease.key, lease) for lease in leases)
    return tuple(
        _session(key, lease, parked, block_tokens=block_tokens, now=now)
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
    key: LeaseKey,
    lease: Lease | None,
    parked: dict[tuple[LeaseKey, Tier], int],
    *,
    block_tokens: int,
    now: float,
) -> SessionView:
    expires_s = lease.expires_s if lease else None
    blocks, shared_blocks = _blocks(lease, block_tokens) if lease else (0, 0)
    return SessionView(
        session_id=SessionId(key[1]),
        owner_id=key[0],
        wished=lease.wished if lease else None,
        retention=lease.retention if lease else RetentionClass.ORPHAN,
        expires_in_s=None if expires_s is None else max(0.0, expires_s - now),
        idle_s=max(0.0, now - lease.used_s) if lease else None,
        cached_tokens=lease.cached_tokens if lease else 0,
        blocks=blocks,
        shared_blocks=shared_blocks,
        host_tokens=parked.get((key, Tier.HOST), 0),
        disk_tokens=parked.get((key, Tier.DISK), 0),
    )


def _blocks(lease: Lease, block_tokens: int) -> tuple[int, int]:
    """How many blocks the lease's paths run through, and how many of them are the operator's."""
    seen: set[Entry] = set()
    blocks = shared_blocks = 0
    for entry in sorted(lease.entries, key=lambda entry: -entry.end):
        path = list(entry.path())
        parting = next((above for above in path if above in seen), None)
        if parting is entry:
            continue
        # A block in which paths part is there once for each of them.
        start = parting.end if parting else 0
        blocks += -(-entry.end // block_tokens) - start // block_tokens
        zone = next((above.end for above in path if is_operators(above.scope)), 0)
        shared_blocks = max(shared_blocks, zone // block_tokens)
        seen.update(path)
    return blocks, shared_blocks


def _paths(entries: Iterable[Entry]) -> Counter[Entry]:
    """How many leased paths end at an entry and below it; parents come before their children."""
    paths = Counter({entry: _leased(entry) for entry in entries})
    for entry in reversed(paths):
        parent = entry.parent
        if parent is not None and parent in paths:
            paths[parent] += paths[entry]
    return paths


def _leased(entry: Entry) -> int:
    """The operator's text by itself is nobody's path, and what is orphan is hardly gone on from."""
    leases = (holder for holder in entry.held_by if isinstance(holder, Lease))
    return sum(lease.kind is not None and not lease.orphan for lease in leases)


def _ending(entry: Entry) -> Lease | None:
    """Whose path ends here; what is published goes before sessions that were forked from each other."""
    leases = [lease for lease in entry.held_by if isinstance(lease, Lease) and lease.kind]
    ours = [lease for lease in leases if not lease.orphan and lease.key[1] != NO_SESSION]
    return min(ours, key=lambda lease: (lease.kind not in PUBLISHED, lease.key), default=None)


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


def _node(
    entry: Entry, pool: BlockPool, retention: RetentionClass, *, paths: int, now: float
) -> PrefixNode:
    in_use = any(pool.users(block) for block in entry.blocks)
    parent, lease = entry.parent, _ending(entry)
    return PrefixNode(
        node_id=entry.entry_id,
        parent_id=parent.entry_id if parent and parent.parent else None,
        kind=lease.kind if lease else None,
        subject_id=lease.key[1] if lease else None,
        owner_id=lease.key[0] if lease else None,
        scope=entry.scope,
        tokens=len(entry.ids),
        blocks=len(entry.blocks),
        in_use=in_use,
        retention=RetentionClass.RUNNING if in_use else retention,
        hits=entry.hits,
        paths=paths,
        idle_s=max(0.0, now - entry.used_s),
    )
