"""The short form of `python -m tests.chaos.fuzz`: blind changes, a few hundred a target."""

import random

import pytest

from tests.chaos.fuzz import TARGETS, mutated

INPUTS = 300


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_nobody_meant_are_refused_and_do_no_more(name):
    target, draw = TARGETS[name], random.Random(1)  # noqa: S311
    taste, whole = target.load(), target.whole()

    for data in whole:
        taste(data)
    for _ in range(INPUTS):
        taste(mutated(draw, whole))
