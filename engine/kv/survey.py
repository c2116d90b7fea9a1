"""What the cache shows of itself: every session and every entry, in sizes, never in ids."""

from engine.api import PrefixNode, RetentionClass, SessionId, SessionView
from engine.kv.blocks import BlockPool
from engine.kv.pins import Lease
from engine.kv.prefix import Entry
from engine.kv.retention import retention_of


def session_view(lease: Lease, now: float) -> SessionView:
    owner_id, session_id = lease.key
    return SessionView(
        session_id=SessionId(session_id),
        owner_id=owner_id,
        retention=lease.retention,
        cached_tokens=lease.cached_tokens,
        idle_s=max(0.0, now - lease.used_s),
    )


def node_view(entry: Entry, root: Entry, pool: BlockPool) -> PrefixNode:
    in_use = any(pool.users(block) for block in entry.blocks)
    parent = entry.parent
    return PrefixNode(
        node_id=entry.entry_id,
        parent_id=parent.entry_id if parent and parent is not root else None,
        scope=entry.scope,
        tokens=len(entry.ids),
        blocks=len(entry.blocks),
        in_use=in_use,
        retention=RetentionClass.RUNNING if in_use else retention_of(entry),
    )
