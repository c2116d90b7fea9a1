"""The tree of messages does not depend on the order of its rows (law 16)."""

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import tree
from app.ids import MessageId


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    id: MessageId
    parent_id: MessageId | None


def name(number: int) -> MessageId:
    return MessageId(f"msg_{number:04}")


@st.composite
def trees(draw: st.DrawFn) -> list[Leaf]:
    """A forest in which every parent is older than its children."""
    size = draw(st.integers(1, 40))
    nodes = []
    for number in range(size):
        parent = draw(st.integers(-1, number - 1))
        nodes.append(Leaf(id=name(number), parent_id=None if parent < 0 else name(parent)))
    return nodes


@given(nodes=trees(), seed=st.integers(0, 2**32))
def test_16_a_path_and_its_siblings_are_the_same_for_shuffled_rows(nodes: list[Leaf], seed: int):
    shuffled = random.Random(seed).sample(nodes, len(nodes))  # noqa: S311

    for node in nodes:
        way = tree.path(shuffled, node.id)
        assert way == tree.path(nodes, node.id)
        assert way[0].parent_id is None
        assert way[-1] == node
        assert all(b.parent_id == a.id for a, b in itertools.pairwise(way))
        assert tree.siblings(shuffled, node.id) == tree.siblings(nodes, node.id)
    assert tree.children(shuffled) == tree.children(nodes)


def test_siblings_stand_in_the_order_they_were_made():
    nodes = [Leaf(id=name(n), parent_id=None if n == 0 else name(0)) for n in (0, 3, 1, 2)]

    assert [node.id for node in tree.siblings(nodes, name(2))] == [name(1), name(2), name(3)]


def test_no_leaf_is_an_empty_path():
    assert tree.path([], None) == []


def test_a_missing_parent_is_told():
    with pytest.raises(ValueError, match="msg_0000 is missing"):
        tree.path([Leaf(id=name(1), parent_id=name(0))], name(1))


def test_a_circle_of_parents_is_told():
    nodes = [Leaf(id=name(0), parent_id=name(1)), Leaf(id=name(1), parent_id=name(0))]

    with pytest.raises(ValueError, match="visited twice"):
        tree.path(nodes, name(1))


def test_an_unknown_node_has_no_siblings():
    with pytest.raises(ValueError, match="not in this tree"):
        tree.siblings([], name(1))
