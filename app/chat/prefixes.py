"""The prefix tree as administrators see it: who shares what, and what of it lies in lower tiers.

Sizes, classes and ids, never a text. Pure.
"""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from engine.api import CacheSnapshot, RetentionClass
from engine.figures import PrefixNode
from engine.terms import SubjectKind, Tier


class PrefixRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the prefix tree. `tokens` and `blocks` are its own, `all_tokens` those below it too.

    `bytes` is what the KV of its own tokens takes, once, however many share them.
    What lies in a lower tier alone stands behind its session's last node, with an id below zero.
    """

    node_id: int
    parent_id: int | None
    kind: SubjectKind | None
    """Of the persona, document or session whose path ends here."""
    subject_id: str | None
    owner_id: str | None
    tier: Tier
    scope: str
    tokens: int
    blocks: int
    bytes: int
    all_tokens: int
    in_use: bool
    retention: str
    hits: int
    paths: int
    idle_s: float


class PrefixTree(msgspec.Struct, frozen=True, kw_only=True):
    """The largest nodes, each with those above it, parents first; `left_out` are smaller."""

    nodes: tuple[PrefixRow, ...]
    left_out: int


def prefix_tree(snapshot: CacheSnapshot, limit: int, token_bytes: int) -> PrefixTree:
    """The `limit` nodes that have most at and below them; so a node's parent is there if it is."""
    pooled = (_prefix(node, token_bytes) for node in snapshot.nodes)
    rows = [*pooled, *_parked(snapshot, token_bytes)]
    sums: dict[int, int] = defaultdict(int)
    for row in reversed(rows):
        sums[row.node_id] += row.tokens
        if row.parent_id is not None:
            sums[row.parent_id] += sums[row.node_id]
    largest = sorted(rows, key=lambda row: -sums[row.node_id])[:limit]
    kept = {row.node_id for row in largest}
    return PrefixTree(
        nodes=tuple(
            msgspec.structs.replace(row, all_tokens=sums[row.node_id])
            for row in rows
            if row.node_id in kept
        ),
        left_out=len(rows) - len(kept),
    )


def _prefix(node: PrefixNode, token_bytes: int) -> PrefixRow:
    return PrefixRow(
        node_id=node.node_id,
        parent_id=node.parent_id,
        kind=node.kind,
        subject_id=node.subject_id,
        owner_id=node.owner_id,
        tier=Tier.DEVICE,
        scope=node.scope,
        tokens=node.tokens,
        blocks=node.blocks,
        bytes=node.tokens * token_bytes,
        all_tokens=node.tokens,
        in_use=node.in_use,
        retention=_word(node.retention),
        hits=node.hits,
        paths=node.paths,
        idle_s=node.idle_s,
    )


def _parked(snapshot: CacheSnapshot, token_bytes: int) -> Iterator[PrefixRow]:
    """What of each session lies in a lower tier and not in the pool."""
    ends = {(node.owner_id, node.subject_id): node for node in snapshot.nodes if node.kind}
    for number, view in enumerate(snapshot.sessions, 1):
        parked_tokens = max(view.host_tokens, view.disk_tokens) - view.cached_tokens
        if parked_tokens <= 0:
            continue
        end = ends.get((view.owner_id, view.session_id))
        yield PrefixRow(
            node_id=-number,
            parent_id=end.node_id if end else None,
            kind=SubjectKind.SESSION,
            subject_id=view.session_id,
            owner_id=view.owner_id,
            tier=Tier.HOST if view.host_tokens >= view.disk_tokens else Tier.DISK,
            scope=f"user:{view.owner_id}",
            tokens=parked_tokens,
            blocks=0,
            bytes=parked_tokens * token_bytes,
            all_tokens=parked_tokens,
            in_use=False,
            retention=_word(view.retention),
            hits=0,
            paths=0,
            idle_s=view.idle_s or 0.0,
        )


def _word(retention: RetentionClass) -> str:
    return retention.name.lower()
