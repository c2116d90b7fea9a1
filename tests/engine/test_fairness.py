"""Deficits between owners: who is owed, how much, and when it is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from engine.api import OwnerId
from engine.fairness import Deficits
from tests.kit.desk import ANN, BEN

MOST = 100
OWNERS = [OwnerId(name) for name in "abcde"]


def joined(*owners: OwnerId) -> Deficits:
    deficits = Deficits(MOST)
    for owner_id in owners:
        deficits.join(owner_id, idle=True)
    return deficits


def test_what_one_is_served_is_owed_to_the_others():
    deficits = joined(ANN, BEN)

    deficits.charge(ANN, 40)
    deficits.settle(40)

    assert (deficits.owed(ANN), deficits.owed(BEN)) == (-20, 20)
    assert deficits.place(BEN) < deficits.place(ANN)


def test_of_equals_whoever_had_a_turn_last_comes_last():
    deficits = joined(ANN, BEN)
    assert deficits.place(ANN) < deficits.place(BEN)

    deficits.had_turn(ANN)

    assert deficits.place(BEN) < deficits.place(ANN)


def test_a_charge_can_be_taken_back():
    deficits = joined(ANN, BEN)

    deficits.charge(ANN, 40)
    deficits.charge(ANN, -40)

    assert deficits.owed(ANN) == deficits.owed(BEN) == 0


def test_whoever_wanted_nothing_is_owed_nothing_for_it():
    deficits = joined(ANN, BEN)
    deficits.charge(ANN, 60)
    deficits.settle(60)

    deficits.join(BEN, idle=True)

    assert deficits.owed(BEN) == 0


def test_whoever_waited_is_owed_what_the_others_had_meanwhile():
    deficits = joined(ANN, BEN)
    deficits.charge(ANN, 60)
    deficits.settle(60)

    deficits.join(BEN, idle=False)

    assert deficits.owed(BEN) == 30


def test_coming_back_pays_no_debt():
    deficits = joined(ANN, BEN)
    deficits.charge(ANN, 60)
    deficits.settle(60)

    deficits.leave(ANN)
    deficits.join(ANN, idle=True)

    assert deficits.owed(ANN) == -30


def test_whoever_left_is_forgotten_once_the_debt_is_made_up():
    deficits = joined(ANN, BEN)
    deficits.charge(ANN, 60)
    deficits.settle(60)
    deficits.leave(ANN)
    assert len(deficits) == 2

    deficits.charge(BEN, 30)
    deficits.settle(30)

    assert len(deficits) == 1


def test_all_is_forgiven_when_everybody_got_all_and_forgotten_when_nobody_is_left():
    deficits = joined(ANN, BEN, BEN)
    deficits.charge(ANN, 60)
    deficits.settle(60)
    deficits.leave(ANN)

    deficits.forgive()
    assert (len(deficits), deficits.owed(BEN)) == (1, 0)
    deficits.leave(BEN)
    deficits.leave(BEN)

    assert len(deficits) == 0
    deficits.settle(10)


def test_debts_keep_their_order_however_deep_they_are():
    deficits = joined(*OWNERS)

    for _ in range(50):
        deficits.charge(OWNERS[0], 90)
        deficits.charge(OWNERS[1], 80)

    assert max(OWNERS, key=deficits.place) == OWNERS[0]
    assert deficits.place(OWNERS[2]) < deficits.place(OWNERS[1])
    assert deficits.owed(OWNERS[0]) == -MOST


moves = st.tuples(
    st.sampled_from(["join", "come back", "leave", "charge", "settle", "forgive"]),
    st.sampled_from(OWNERS),
    st.integers(0, 3 * MOST),
)


@given(st.lists(moves, max_size=60))
def test_nobody_is_owed_or_owes_more_than_the_most_and_nobody_is_kept_for_nothing(moves):
    deficits = Deficits(MOST)
    jobs = dict.fromkeys(OWNERS, 0)
    for move, owner_id, tokens in moves:
        if move in ("join", "come back"):
            deficits.join(owner_id, idle=move == "join")
            jobs[owner_id] += 1
        elif move == "leave" and jobs[owner_id]:
            deficits.leave(owner_id)
            jobs[owner_id] -= 1
        elif move == "charge" and jobs[owner_id]:
            deficits.charge(owner_id, tokens)
        elif move == "settle":
            deficits.settle(tokens)
        elif move == "forgive":
            deficits.forgive()
        present = [other for other in OWNERS if jobs[other]]
        assert all(-MOST <= deficits.owed(other) <= MOST for other in present)
        assert len(deficits) >= len(present)

    for owner_id, count in jobs.items():
        for _ in range(count):
            deficits.leave(owner_id)
    assert len(deficits) == 0
