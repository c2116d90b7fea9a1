"""Parking and restoring on a GPU: beside what computes, and in its order."""

import queue
from pathlib import Path

import pytest
import torch

from engine.api import OwnerId, Scope
from engine.model.carrier import Carrier
from engine.model.pool import KVShape, Pool
from engine.model.segments import SegmentFiles
from engine.step import Arrival, Park, Piece, Restore, SegmentHead, TransferId, slots_at
from engine.terms import Tier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")

SHAPE = KVShape(layers=3, kv_heads=2, head_size=8, dtype_bytes=2)
CYCLES = 500_000_000
"""A fraction of a second in which a card does nothing else in its stream."""


class Bench:
    def __init__(self, folder: Path) -> None:
        device = torch.device("cuda")
        self.pool = Pool(SHAPE, blocks=32, block_tokens=4, dtype=torch.bfloat16, device=device)
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        files = SegmentFiles(folder, "weights")
        files.heads()
        self.carrier = Carrier(self.pool, files, self.arrivals.put)

    def park(self, tier: Tier, blocks: list[int]) -> None:
        head = SegmentHead(
            name="a",
            parent="",
            scope=Scope("user:ann"),
            start=0,
            token_ids=tuple(range(10)),
            owner_id=OwnerId("ann"),
            session_id="s",
        )
        slots = slots_at(blocks, 4, 1, 10)  # type: ignore[arg-type]
        order = Park(transfer_id=TransferId(1), tier=tier, head=head, slots=slots)
        self.carrier.carry([order])

    def restore(self, tier: Tier, blocks: list[int]) -> None:
        slots = slots_at(blocks, 4, 2, 8)  # type: ignore[arg-type]
        piece = Piece(tier=tier, name="a", skip=2, slots=slots)
        self.carrier.carry([Restore(transfer_id=TransferId(2), pieces=(piece,))])

    def arrived(self) -> int:
        return self.arrivals.get(timeout=60).pieces


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_kv_is_parked_as_it_will_be_and_restored_behind_what_was_launched(tmp_path, tier):
    bench = Bench(tmp_path)
    written = torch.randn(bench.pool._store.shape, device="cuda", dtype=torch.bfloat16)
    source = [slot for block in (3, 9, 10) for slot in range(4 * block, 4 * block + 4)][1:11]
    target = [slot for block in (20, 25, 21) for slot in range(4 * block, 4 * block + 4)][2:10]

    torch.cuda._sleep(CYCLES)
    bench.pool._store.copy_(written)  # has not begun when it is parked
    bench.park(tier, [3, 9, 10])
    assert bench.arrived() == 1
    torch.cuda._sleep(CYCLES)
    bench.pool._store.zero_()  # has not begun when it is restored
    bench.restore(tier, [20, 25, 21])
    assert bench.arrived() == 1
    bench.carrier.close()

    expected = torch.zeros_like(written)
    expected[:, :, target] = written[:, :, source[2:]]
    assert torch.equal(bench.pool._store, expected)


def test_nobody_waits_for_a_copy_but_by_its_event(tmp_path):
    bench = Bench(tmp_path)

    torch.cuda.set_sync_debug_mode("error")
    try:
        bench.park(Tier.HOST, [3, 9, 10])
        parked = bench.arrived()
        bench.restore(Tier.HOST, [20, 25, 21])
        restored = bench.arrived()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    bench.carrier.close()

    assert (parked, restored) == (1, 1)


def test_what_lies_in_host_memory_is_pinned(tmp_path):
    bench = Bench(tmp_path)

    bench.park(Tier.HOST, [3, 9, 10])

    assert bench.arrived() == 1
    assert bench.carrier._host["a"].is_pinned()
    bench.carrier.close()
