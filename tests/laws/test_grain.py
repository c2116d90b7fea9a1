"""How fine a hit is: to the token; in the deterministic mode to a border, and that is told (law 2)."""

from itertools import product

import pytest

from engine.api import MissReason
from engine.config import PREFIX_INDEXES
from tests.kit.desk import Desk, config

on_both = pytest.mark.parametrize("index", PREFIX_INDEXES)
TEXT = [2 + at * at % 90 for at in range(130)]


@pytest.mark.row("engine 7")
@on_both
@pytest.mark.parametrize("block_tokens", [1, 4, 16, 64])
def test_02_a_shared_prefix_of_any_length_is_a_hit_to_its_last_token(index, block_tokens):
    """No near miss: none is too short for a block, none ends too far behind a border."""
    sizes = {"block_tokens": block_tokens, "pool_blocks": 1024 // block_tokens}
    for shared in (1, 3, 4, 15, 16, 17, 63, 64, 65, 129):
        desk = Desk(config(prefix_index=index, **sizes))
        desk.run(desk.job(TEXT, output=1))

        receipt = desk.run(desk.job([*TEXT[:shared], 95, 96], output=1)).receipt

        assert (receipt.cached_tokens, receipt.computed_tokens) == (shared, 2)


@pytest.mark.row("engine 7")
@on_both
@pytest.mark.parametrize("grain", [16, 64])
def test_02_what_a_border_cuts_off_a_hit_is_counted_as_computed_and_named(index, grain):
    """Also where the border is wider than a block, or the reply longer: nothing was evicted."""
    for known, said in product(range(grain, 2 * grain + 1, 7), (2, 40)):
        desk = Desk(config(prefix_index=index, canonical_tokens=grain, step_tokens=128))
        job = desk.job(TEXT[:known], session="s", output=said)
        before = desk.run(job)
        history = desk.history(before, job)

        receipt = desk.run(
            desk.job([*history.token_ids, 95], session="s", output=1, history=history)
        ).receipt

        cut = len(history.token_ids) - receipt.cached_tokens
        assert receipt.cached_tokens % grain == 0
        assert receipt.computed_tokens == cut + 1
        assert cut < grain + said
        wanted = MissReason.BELOW_GRANULARITY if cut > 1 else None
        assert receipt.miss_reason is wanted, (known, said)
