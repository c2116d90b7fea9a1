"""Room that is promised: who is let in beside it, and when it is redeemed."""

import pytest

from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.promises import Promises


class Running:
    promised = 0


def test_nobody_is_let_in_who_would_need_what_is_promised():
    pool = BlockPool(10)
    pool.allocate(2)
    promises, running = Promises(pool), Running()
    assert promises.allow(8)

    promises.make(running, 3)

    assert promises.allow(5)
    assert not promises.allow(6)


def test_a_promise_is_redeemed_once_and_growing_on_redeems_nothing():
    promises, running, other = Promises(BlockPool(10)), Running(), Running()
    promises.make(running, 3)
    promises.make(other, 2)

    promises.redeem(running, 2)
    assert (running.promised, promises.blocks) == (1, 3)
    promises.redeem(running, 5)

    assert (running.promised, promises.blocks) == (0, 2)
    promises.check([running, other])


def test_check_notices_promises_that_nobody_has():
    promises, running = Promises(BlockPool(10)), Running()
    promises.make(running, 3)

    with pytest.raises(Corrupt, match="3 blocks are promised, 0 to whoever runs"):
        promises.check([])
