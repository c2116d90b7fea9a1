"""The tree of messages: paths, children and siblings, whatever order the rows came in.

PURE. A node is anything with an `id` and a `parent_id`; the root's parent is None. Siblings are in
the order of their ids, which is the order in which they were made (`app.ids`).
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from app.ids import MessageId


class TreeNode(Protocol):
    """What a node of the tree must tell."""

    @property
    def id(self) -> MessageId: ...

    @property
    def parent_id(self) -> MessageId | None: ...


Node = TypeVar("Node", bound=TreeNode)


def path(nodes: Iterable[Node], leaf_id: MessageId | None) -> list[Node]:
    """The nodes from the root down to `leaf_id`, both included; empty for None.

    Raises `ValueError` when a node on the way is missing, or when the parents form a circle.
    """
    by_id = {node.id: node for node in nodes}
    upwards: list[Node] = []
    step = leaf_id
    while step is not None:
        node = by_id.pop(step, None)
        if node is None:
            raise ValueError(f"no way from {leaf_id} to a root: {step} is missing or visited twice")
        upwards.append(node)
        step = node.parent_id
    return upwards[::-1]


def children(nodes: Iterable[Node]) -> dict[MessageId | None, list[Node]]:
    """Every parent's children in the order they were made; the roots are under None."""
    by_parent: dict[MessageId | None, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        by_parent.setdefault(node.parent_id, []).append(node)
    return by_parent


def below(nodes: Iterable[Node], node_id: MessageId) -> list[MessageId]:
    """`node_id` and everything under it, parents first."""
    by_parent, found = children(nodes), [node_id]
    for above in found:
        found += [child.id for child in by_parent.get(above, ())]
    return found


def tip(nodes: Iterable[Node], node_id: MessageId | None) -> MessageId | None:
    """The end of the branch through `node_id` (None: of the whole tree), the newest at each fork."""
    by_parent = children(nodes)
    while node_id in by_parent:
        node_id = by_parent[node_id][-1].id
    return node_id


def siblings(nodes: Iterable[Node], node_id: MessageId) -> list[Node]:
    """The alternatives at `node_id`'s place, itself among them. Raises `ValueError` if unknown."""
    for alternatives in children(nodes).values():
        if any(node.id == node_id for node in alternatives):
            return alternatives
    raise ValueError(f"{node_id} is not in this tree")
