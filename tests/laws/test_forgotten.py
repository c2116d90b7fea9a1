"""What was forgotten, on a real server whose engine computes in this process: no free block holds it."""

from pathlib import Path

import pytest
import torch

from engine.api import Engine
from engine.kv.blocks import BlockState
from engine.local import LocalEngine
from engine.step import BlockId
from tests.kit.engines import a_config
from tests.kit.peers import until
from tests.kit.serving import serving
from tests.kit.staff import Somebody, boss, done, nothing_to_warm, somebody
from tests.kit.tab import LONG


async def open_engine() -> Engine:
    """As it serves: nothing is wiped for the sake of a check."""
    return await LocalEngine.open(a_config(checks=False, poison=False))


class Blocks:
    """The pool as it is, whatever its books say, and what they say of it."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, LocalEngine)
        self._pool = engine._parts.runner.pool
        self._books = engine._parts.core._cache._pool

    def filled(self) -> set[int]:
        """Those of which any slot holds anything, in any layer."""
        held = torch.zeros(self._pool.blocks, dtype=torch.bool)
        for layer in range(self._pool.shape.layers):
            for kv in (self._pool.keys(layer), self._pool.values(layer)):
                held |= kv.reshape(self._pool.blocks, -1).any(dim=1)
        return set(held.nonzero().flatten().tolist())

    def left(self, blocks: set[int]) -> set[int]:
        """Those of them that are free and filled all the same."""
        found = self.filled() & blocks
        return {one for one in found if self._books.state(BlockId(one)) is BlockState.FREE}


async def talk(who: Somebody) -> str:
    """A conversation of some blocks; its id."""
    conversation_id = await who.conversation()
    async with who.tab() as tab:
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, f"{LONG} " * 5)
        await tab.taste(accepted.response.id)
    return conversation_id


@pytest.mark.row("wiped blocks")
async def test_what_somebody_deleted_or_who_is_removed_left_is_in_no_free_block(tmp_path: Path):
    with serving(tmp_path, open_engine) as house:
        blocks = Blocks(house.service.engine)
        async with boss(house) as admin, somebody(house) as ann:
            await nothing_to_warm(ann)
            before = blocks.filled()
            conversation_id = await talk(ann)
            first = blocks.filled() - before
            await done(await ann.client.delete(f"/api/conversations/{conversation_id}"))
            await until(house, lambda: not blocks.left(first))
            await talk(ann)
            second = blocks.filled() - before
            await done(await admin.client.delete(f"/api/users/{ann.user_id}"))
            await until(house, lambda: not blocks.left(second))
            stays = blocks.filled() - before

    assert min(len(first), len(second)) >= 5
    assert len(stays) <= 2, "that of the operator's text in which the first of theirs began"
