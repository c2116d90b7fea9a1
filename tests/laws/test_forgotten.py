"""What was forgotten, on a real server whose engine computes in this process: no slot holds it."""

from pathlib import Path

import pytest
import torch

from engine.api import OPERATOR_SCOPE, Engine, Scope
from engine.local import LocalEngine
from tests.kit.engines import a_config, opened
from tests.kit.peers import until
from tests.kit.serving import serving
from tests.kit.staff import Somebody, boss, done, nothing_to_warm, somebody
from tests.kit.tab import LONG


async def open_engine() -> Engine:
    """As it serves: nothing is wiped for the sake of a check."""
    return await opened(a_config(checks=False, poison=False))


class Pool:
    """The slots as they are, whatever the books say, and what the index says of them."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, LocalEngine)
        self._pool = engine._parts.runner.pool
        self._index = engine._parts.core._cache._index

    def filled(self) -> set[int]:
        """Those that hold anything, in any layer."""
        held = torch.zeros(self._pool.blocks * self._pool.block_tokens, dtype=torch.bool)
        for layer in range(self._pool.shape.layers):
            for kv in (self._pool.keys(layer), self._pool.values(layer)):
                held |= kv.flatten(1).any(dim=1).cpu()
        return set(held.nonzero().flatten().tolist())

    def known(self, scope: Scope | None = None) -> set[int]:
        """Those that somebody can match, or only of this scope."""
        size, slots = self._pool.block_tokens, set[int]()
        for entry in self._index.entries():
            if scope in (None, entry.scope):
                first = entry.start // size
                for at in range(entry.start, entry.end):
                    slots.add(entry.blocks[at // size - first] * size + at % size)
        return slots


async def talk(who: Somebody) -> str:
    """A conversation of some blocks; its id."""
    conversation_id = await who.conversation()
    async with who.tab() as tab:
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, f"{LONG} " * 5)
        await tab.taste(accepted.response.id)
    return conversation_id


@pytest.mark.row("wiped blocks")
async def test_what_somebody_deleted_or_who_is_removed_left_is_nowhere(
    tmp_path: Path, database_url: str
):
    with serving(tmp_path, open_engine, database_url=database_url) as house:
        pool = Pool(house.service.engine)
        async with boss(house) as admin, somebody(house) as ann:
            await nothing_to_warm(ann)
            conversation_id = await talk(ann)
            first = pool.filled() - pool.known(OPERATOR_SCOPE)
            await done(await ann.client.delete(f"/api/conversations/{conversation_id}"))
            await until(house, lambda: pool.filled() == pool.known(OPERATOR_SCOPE))
            await talk(ann)
            second = pool.filled() - pool.known(OPERATOR_SCOPE)
            await done(await admin.client.delete(f"/api/users/{ann.user_id}"))
            await until(house, lambda: pool.filled() == pool.known())
            stays = pool.filled()

    assert min(len(first), len(second)) >= 5 * 16
    assert stays == pool.known(OPERATOR_SCOPE), "the operator's text, to its last token"
