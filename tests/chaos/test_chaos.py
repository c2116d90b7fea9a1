"""The short form of `make chaos`."""

from tests.chaos import cut, kill

SEED = 1


async def test_17_nothing_that_anybody_was_told_is_lost_when_processes_end():
    outcome = await kill.run(["engine killed", "server killed"], people=3, seed=SEED)

    assert set(outcome.harms) == {"engine killed", "server killed"}
    assert outcome.turns > 0
    assert outcome.compared > 0
    assert outcome.faults == []


async def test_14_what_is_heard_over_a_network_that_fails_is_the_log():
    outcome = await cut.run(seconds=4, people=3, seed=SEED)

    assert outcome.counts["breaks"] > 0
    assert outcome.turns > 0
    assert outcome.faults == []
