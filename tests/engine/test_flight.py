"""Jobs in flight over lost engines: who is given up, and who waits so that another goes alone."""

import pytest

from engine.api import Delta
from engine.flight import Flight, Flights
from tests.kit.engines import a_job


@pytest.fixture
def flights() -> Flights:
    found = Flights(3)
    found.update({number: Flight(a_job((1, 2, 3))) for number in range(4)})
    return found


def live(flights: Flights, guilty: Flight | None = None) -> list[Flight]:
    """One engine, which dies of the guilty one before anybody asked with it has a token."""
    for flight in flights.values():
        flight.is_asked = not flights.is_suspect(flight)
    while suspect := flights.next_suspect():
        _, flight = suspect
        flight.is_asked = True
        if guilty is None or not guilty.is_asked:
            flight.take(a_token(flight))
    return flights.lose()


def a_token(flight: Flight) -> Delta:
    return Delta(job_id=flight.job.job_id, token_ids=(7,), text="a")


def test_the_job_that_kills_engines_takes_nobody_with_it(flights: Flights):
    guilty = flights[2]

    given_up = [live(flights, guilty) for _ in range(3)]

    assert given_up == [[], [], [guilty]]
    assert [*flights] == [0, 1, 3]
    assert live(flights) == []


def test_a_job_that_gets_on_is_never_given_up(flights: Flights):
    for _ in range(20):
        for flight in flights.values():
            flight.is_asked = True
            flight.take(a_token(flight))
        assert flights.lose() == []

    assert flights[0].resumed().resumed_output == (7,) * 20


def test_what_no_engine_was_asked_is_lost_with_none(flights: Flights):
    for _ in range(5):
        assert flights.lose() == []

    assert not any(flights.is_suspect(flight) for flight in flights.values())


def test_a_suspect_that_is_asked_makes_the_others_wait(flights: Flights):
    guilty = flights[0]
    for _ in range(2):
        live(flights, guilty)

    guilty.is_asked = True
    waiting = flights.next_suspect()
    del flights[0]

    assert waiting is None
    assert flights.next_suspect() == (1, flights[1])
