"""Why a turn computed more than its new part: every reason, by the one function that names it."""

from collections.abc import Iterable
from typing import Any

import pytest

from engine.api import History, MissReason
from engine.kv.misses import Fingerprints, Lookup, Miss, explain


def history(**changes: Any) -> History:
    values: dict[str, Any] = {
        "token_ids": tuple(range(40)),
        "model_fingerprint": "m",
        "template_fingerprint": "t",
        "boot_id": "b",
    }
    return History(**(values | changes))


def lookup(ids: Iterable[int] = range(50), **changes: Any) -> Lookup:
    values: dict[str, Any] = {
        "token_ids": tuple(ids),
        "cached_tokens": 0,
        "unused_tokens": 16,
        "fingerprints": Fingerprints(model_fingerprint="m", template_fingerprint="t", boot_id="b"),
        "loss": None,
    }
    return Lookup(**(values | changes))


def test_without_a_history_it_is_the_first_turn():
    assert explain(None, lookup()) == Miss(reason=MissReason.FIRST_TURN, differs_at=None)


def test_there_is_no_reason_where_only_the_new_turn_was_computed():
    assert explain(history(), lookup(cached_tokens=39)) == Miss(reason=None, differs_at=None)


def test_a_regenerated_turn_whose_whole_prompt_was_cached_has_no_reason():
    asked = lookup(range(30), cached_tokens=29)

    assert explain(history(), asked) == Miss(reason=None, differs_at=None)


CHANGED = (*range(20), 77, *range(21, 50))


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({}, MissReason.INPUT_CHANGED),
        ({"head_end": 21}, MissReason.INSTRUCTIONS_CHANGED),
        ({"forked": True}, MissReason.NEW_BRANCH),
        ({"template_fingerprint": "old"}, MissReason.TEMPLATE_CHANGED),
        ({"model_fingerprint": "old"}, MissReason.MODEL_CHANGED),
    ],
)
def test_a_prompt_that_leaves_its_history_says_where_and_why(told, reason):
    asked = lookup(CHANGED, cached_tokens=20)

    assert explain(history(**told), asked) == Miss(reason=reason, differs_at=20)


@pytest.mark.parametrize(
    ("told", "asked", "reason"),
    [
        ({}, {"loss": MissReason.EVICTED_IDLE}, MissReason.EVICTED_IDLE),
        ({}, {}, MissReason.EVICTED_PRESSURE),
        ({}, {"cached_tokens": 32}, MissReason.BELOW_GRANULARITY),
        ({"boot_id": "old"}, {"loss": MissReason.EVICTED_IDLE}, MissReason.ENGINE_RESTART),
        ({"model_fingerprint": "old", "boot_id": "old"}, {}, MissReason.MODEL_CHANGED),
    ],
)
def test_tokens_that_did_not_change_were_lost_and_the_reason_says_how(told, asked, reason):
    assert explain(history(**told), lookup(**asked)) == Miss(reason=reason, differs_at=None)


def test_a_loss_before_the_change_is_the_reason_and_the_change_is_still_located():
    asked = lookup(CHANGED, cached_tokens=3, loss=MissReason.EVICTED_PRESSURE)

    assert explain(history(), asked) == Miss(reason=MissReason.EVICTED_PRESSURE, differs_at=20)
