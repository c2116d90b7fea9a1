"""Copies of conversations in lower tiers: whose segments are once one of two is forgotten."""

import msgspec
import pytest

from engine.api import SubjectKind
from tests.engine.test_tiers import ANN, OTHER, Bench, session


@pytest.mark.parametrize("sizes", [{"host": 200}, {"disk": 200}])
@pytest.mark.parametrize("tokens", [16, 32, 40])
def test_a_copy_that_says_nothing_of_its_own_outlives_its_original(sizes, tokens):
    """Of which nothing goes on that the copy does not say."""
    bench = Bench(**sizes)
    bench.park(range(48))
    bench.arrive_all()
    bench.park(range(tokens), key=OTHER)
    bench.arrive_all()

    bench.tiers.forget(session(ANN))
    bench.collect()

    assert bench.found(range(48)) == tokens
    assert {head.session_id for head in bench.held.values()} == {"s2"}
    assert sum(len(head.token_ids) for head in bench.held.values()) == tokens
    bench.check()
    bench.tiers.forget(session(OTHER))
    bench.collect()
    assert bench.held == {}


def test_a_copy_that_goes_first_leaves_its_original_and_is_no_heir():
    bench = Bench(disk=200)
    bench.park(range(32))
    bench.park(range(32), key=OTHER)
    bench.arrive_all()

    bench.tiers.forget(session(OTHER))
    bench.collect()
    assert bench.found(range(32)) == 32
    bench.tiers.forget(session(ANN))
    bench.collect()

    assert bench.held == {}


def test_with_their_owner_original_and_copy_are_gone():
    bench = Bench(disk=200)
    bench.park(range(40))
    bench.park(range(40), key=OTHER)
    bench.park(range(50))
    bench.arrive_all()
    assert bench.found(range(40)) == 40

    bench.tiers.forget(msgspec.structs.replace(session(ANN), kind=SubjectKind.OWNER))
    bench.collect()

    assert bench.held == {}
    bench.check()


def test_a_copy_outlives_an_original_that_has_grown_since():
    bench = Bench(disk=200)
    bench.park(range(40))
    bench.park(range(40), key=OTHER)
    bench.park(range(46))
    bench.arrive_all()

    bench.tiers.forget(session(ANN))
    bench.collect()

    assert bench.found(range(46)) == 40
    bench.check()
