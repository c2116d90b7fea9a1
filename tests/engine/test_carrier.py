"""Parked KV as bytes: what is read back is what was written, and what is damaged never is."""

import os
import queue
import shutil
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from engine.api import OwnerId, Scope
from engine.errors import Corrupt
from engine.model.carrier import Carrier
from engine.model.pool import FP8, KVShape, Pool
from engine.model.segments import SegmentFiles
from engine.step import (
    Arrival,
    BlockId,
    Drop,
    HandOver,
    Park,
    Piece,
    Restore,
    SegmentHead,
    Slots,
    Spill,
    Transfer,
    TransferId,
)
from engine.terms import Tier

SHAPE = KVShape(layers=3, kv_heads=2, head_size=8, dtype_bytes=2)
DEADLINE_S = 30.0


def make_pool(dtype: torch.dtype = torch.bfloat16) -> Pool:
    pool = Pool(SHAPE, blocks=32, block_tokens=4, dtype=dtype, device=torch.device("cpu"))
    torch.manual_seed(7)
    pool._store.copy_(torch.randn(pool._store.shape))
    return pool


def slots(blocks: list[int], tokens: int, offset: int = 0) -> Slots:
    return Slots(blocks=tuple(map(BlockId, blocks)), offset=offset, tokens=tokens)


def head(name: str, tokens: int) -> SegmentHead:
    return SegmentHead(
        name=name,
        parent="",
        scope=Scope("user:ann"),
        start=0,
        token_ids=tuple(range(tokens)),
        owner_id=OwnerId("ann"),
        session_id="s",
    )


class Bench:
    """A carrier over a real folder; arrivals are waited for."""

    def __init__(self, folder: Path) -> None:
        self.pool = make_pool()
        self.files = SegmentFiles(folder, "weights")
        self.files.heads()
        self.arrived: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self.carrier = Carrier(self.pool, self.files, self.arrived.put)

    def carry(self, *orders: Transfer) -> list[int]:
        """Pieces of each arrival, in order of transfer."""
        self.carrier.carry(orders)
        wanted = sum(not isinstance(order, Drop | HandOver) for order in orders)
        arrivals = [self.arrived.get(timeout=DEADLINE_S) for _ in range(wanted)]
        assert all(arrival.seconds >= 0 for arrival in arrivals)
        return [a.pieces for a in sorted(arrivals, key=lambda a: a.transfer_id)]


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.carrier.close()


def park(number: int, name: str, where: Slots, tier: Tier = Tier.DISK) -> Park:
    return Park(
        transfer_id=TransferId(number), tier=tier, head=head(name, where.tokens), slots=where
    )


def restore(number: int, *pieces: Piece) -> Restore:
    return Restore(transfer_id=TransferId(number), pieces=pieces)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, FP8])
@pytest.mark.parametrize(
    ("blocks", "offset", "tokens"),
    [([5], 1, 2), ([3, 4, 5], 0, 12), ([3, 9, 10, 2], 2, 11), ([7, 6, 5, 4], 3, 13)],
)
def test_slots_are_read_and_written_in_the_order_of_their_tokens(dtype, blocks, offset, tokens):
    pool = make_pool(dtype)
    where = slots(blocks, tokens, offset)
    rows = [blocks[(offset + at) // 4] * 4 + (offset + at) % 4 for at in range(tokens)]

    kv = pool.read(where)

    assert torch.equal(kv, pool._store[:, :, rows])
    before = pool._store.clone()
    pool.write(where, torch.ones_like(kv))
    before[:, :, rows] = 1
    assert torch.equal(pool._store, before)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_what_is_restored_is_byte_for_byte_what_was_parked(bench, tier):
    source, target = slots([3, 9, 10], 11, offset=1), slots([20, 25, 21], 9, offset=2)
    kept = bench.pool.read(source)

    assert bench.carry(park(1, "a", source, tier)) == [1]
    bench.pool.write(source, torch.zeros_like(kept))
    piece = Piece(tier=tier, name="a", skip=2, slots=target)
    assert bench.carry(restore(2, piece)) == [1]

    assert torch.equal(bench.pool.read(target), kept[:, :, 2:])


def test_a_spilled_segment_is_on_disk_as_well(bench):
    source, target = slots([1], 4), slots([2], 4)
    bench.carry(park(1, "a", source, Tier.HOST))

    assert bench.carry(Spill(transfer_id=TransferId(2), head=head("a", 4))) == [1]
    bench.carry(Drop(tier=Tier.HOST, name="a"))
    assert bench.carry(restore(3, Piece(tier=Tier.DISK, name="a", skip=0, slots=target))) == [1]

    assert torch.equal(bench.pool.read(target), bench.pool.read(source))


def test_a_dropped_segment_is_gone(bench, tmp_path):
    bench.carry(park(1, "a", slots([1], 4)), Drop(tier=Tier.DISK, name="a"))
    bench.carrier.close()

    assert list(tmp_path.iterdir()) == []


def test_a_restore_tells_how_many_pieces_are_whole(bench, tmp_path):
    bench.carry(park(1, "a", slots([1], 4)), park(2, "b", slots([2], 4)))
    (tmp_path / "b.safetensors").unlink()
    pieces = [
        Piece(tier=Tier.DISK, name=name, skip=0, slots=slots([block], 4))
        for name, block in (("a", 5), ("b", 6), ("a", 7))
    ]

    assert bench.carry(restore(3, *pieces)) == [1]


def test_a_segment_that_cannot_be_written_arrives_as_such(bench, tmp_path):
    (tmp_path / "a.part").mkdir()

    assert bench.carry(park(1, "a", slots([1], 4))) == [0]
    assert bench.carry(Spill(transfer_id=TransferId(2), head=head("b", 4))) == [0]


def test_without_a_folder_nothing_is_written_to_disk():
    arrived: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
    carrier = Carrier(make_pool(), None, arrived.put)

    carrier.carry([park(1, "a", slots([1], 4))])
    carrier.carry([restore(2, Piece(tier=Tier.DISK, name="a", skip=0, slots=slots([1], 4)))])
    carrier.carry([Drop(tier=Tier.DISK, name="a")])
    carrier.close()

    assert {arrived.get(timeout=DEADLINE_S).pieces for _ in range(2)} == {0}


def test_the_folder_tells_what_it_holds_longest_unused_first(tmp_path):
    files = SegmentFiles(tmp_path / "new", "weights")
    assert files.heads() == []
    kv = make_pool().read(slots([1], 4))
    for second, name in enumerate(("b", "a", "c")):
        files.write(head(name, 4), kv)
        os.utime(tmp_path / "new" / f"{name}.safetensors", (second, second))
    files.read("b")

    again = SegmentFiles(tmp_path / "new", "weights")

    assert [found.name for found in again.heads()] == ["a", "c", "b"]


def test_by_default_the_disk_holds_four_pools_but_no_more_than_a_tenth_of_what_is_free(
    tmp_path, monkeypatch
):
    files = SegmentFiles(tmp_path, "weights")
    files.write(head("a", 4), make_pool().read(slots([1], 4)))
    ours = sum(file.stat().st_size for file in tmp_path.iterdir())

    def taken(pool_bytes: int, *, free: int) -> int:
        disk = shutil._ntuple_diskusage(free * 2, free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
        return files.default_bytes(pool_bytes)

    assert taken(3 << 30, free=1 << 40) == 12 << 30
    assert taken(1 << 20, free=1 << 40) == 4 << 30
    assert taken(3 << 30, free=20 << 30) == ((20 << 30) + ours) // 10
    assert taken(3 << 30, free=0) == ours // 10


def test_other_weights_make_a_segment_foreign(tmp_path):
    SegmentFiles(tmp_path, "weights").write(head("a", 4), make_pool().read(slots([1], 4)))
    files = SegmentFiles(tmp_path, "others")

    assert files.heads() == []
    assert files.refused == 1
    files.clear()
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_file_is_cleared_away(tmp_path):
    (tmp_path / "a.part").write_bytes(b"half")
    files = SegmentFiles(tmp_path, "weights")

    assert files.heads() == []
    files.clear()
    assert list(tmp_path.iterdir()) == []


def go(bench: Bench, folder: Path, how: str) -> None:
    """The segment `a` leaves the disk, in this way."""
    match how:
        case "dropped":
            bench.carry(Drop(tier=Tier.DISK, name="a"))
            bench.carrier.close()
        case "handed over":
            bench.carry(HandOver(head=msgspec.structs.replace(head("a", 8), session_id="copy")))
            bench.carrier.close()
        case "damaged":
            file = folder / "a.safetensors"
            with file.open("r+b") as opened:
                opened.seek(-1, os.SEEK_END)
                opened.write(b"?")
            with pytest.raises(Corrupt):
                bench.files.read("a")
        case "of other weights":
            others = SegmentFiles(folder, "others")
            assert others.heads() == []
            others.clear()
        case "half written":
            (folder / "a.safetensors").rename(folder / "a.part")
            bench.files.clear()


@pytest.mark.row("wiped blocks")
@pytest.mark.parametrize(
    "how", ["dropped", "handed over", "damaged", "of other weights", "half written"]
)
def test_what_leaves_the_disk_is_overwritten_where_it_lay(bench, tmp_path, how):
    bench.carry(park(1, "a", slots([1, 2], 8)))
    with (tmp_path / "a.safetensors").open("rb") as lay:
        assert any(lay.read())

        go(bench, tmp_path, how)

        lay.seek(0)
        left = lay.read()

    assert left == bytes(len(left)) != b""
    whole = SegmentFiles(tmp_path, "weights").heads()
    assert [found.session_id for found in whole] == (["copy"] if how == "handed over" else [])


@pytest.mark.row("wiped blocks")
def test_what_leaves_memory_is_overwritten_and_what_went_to_the_disk_is_not_left_there(
    bench, monkeypatch
):
    read: list[torch.Tensor] = []

    def reading(where: Slots) -> torch.Tensor:
        read.append(Pool.read(bench.pool, where))
        return read[-1]

    monkeypatch.setattr(bench.pool, "read", reading)

    bench.carry(park(1, "a", slots([1, 2], 8), Tier.HOST), park(2, "b", slots([1, 2], 8)))
    in_memory, on_its_way = read
    assert torch.equal(in_memory, Pool.read(bench.pool, slots([1, 2], 8)))
    assert not on_its_way.any()
    bench.carry(Drop(tier=Tier.HOST, name="a"))
    bench.carrier.close()

    assert not in_memory.any()


def damaged(whole: bytes) -> dict[str, bytes]:
    """A segment's file after all that may happen to one."""
    (header_bytes,) = struct.unpack("<Q", whole[:8])
    at = 8 + header_bytes + 11
    return {
        "cut": whole[:-7],
        "empty": b"",
        "grown": whole + b"more",
        "zeroed": bytes(len(whole)),
        "zeroed behind its header": whole[:at] + bytes(len(whole) - at),
        "without a header": b"\xff" * len(whole),
        "of another head": whole.replace(b"user:ann", b"user:ben"),
        "of other tokens": whole.replace(b"[0,1,2,3]", b"[0,1,2,9]"),
        "flipped": whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :],
    }


@pytest.mark.parametrize("how", damaged(bytes(64)))
def test_a_damaged_segment_is_refused_and_deleted_never_served(tmp_path, how):
    files = SegmentFiles(tmp_path, "weights")
    files.heads()
    files.write(head("a", 4), make_pool().read(slots([1], 4)))
    file = tmp_path / "a.safetensors"
    file.write_bytes(damaged(file.read_bytes())[how])
    again = SegmentFiles(tmp_path, "weights")

    if again.heads():
        with pytest.raises(Corrupt):
            again.read("a")

    assert again.refused == 1
    assert not file.exists()


def test_what_is_parked_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """And its name before anybody is told; what is dropped does not come back."""
    flushed: list[tuple[Path, list[str]]] = []
    flush = os.fsync

    def watched(opened: int) -> None:
        flush(opened)
        there = sorted(file.name for file in tmp_path.iterdir())
        flushed.append((Path(f"/proc/self/fd/{opened}").readlink(), there))

    monkeypatch.setattr(os, "fsync", watched)
    files = SegmentFiles(tmp_path, "weights")

    files.write(head("a", 4), make_pool().read(slots([1], 4)))
    assert flushed == [(tmp_path / "a.part", ["a.part"]), (tmp_path, ["a.safetensors"])]
    files.drop("a")
    assert flushed[2:] == [(tmp_path / "a.safetensors", ["a.safetensors"]), (tmp_path, [])]


def test_a_segment_that_is_handed_over_says_so_on_disk_and_is_the_same(bench, tmp_path):
    where = slots([1, 2], 8)
    theirs = msgspec.structs.replace(head("a", 8), session_id="copy")
    kept = bench.pool.read(where)

    bench.carry(park(1, "a", where), HandOver(head=theirs))
    bench.carrier.close()

    again = SegmentFiles(tmp_path, "weights")
    assert again.heads() == [theirs]
    assert torch.equal(again.read("a"), kept)


def test_a_segment_that_cannot_be_handed_over_is_deleted(bench, tmp_path):
    bench.carry(park(1, "a", slots([1, 2], 8)))
    file = tmp_path / "a.safetensors"
    file.write_bytes(damaged(file.read_bytes())["flipped"])

    bench.carry(HandOver(head=head("a", 8)), HandOver(head=head("never written", 8)))
    bench.carrier.close()

    assert list(tmp_path.iterdir()) == []


HEADLESS = {"fingerprint": "weights", "head": "{}", "head_crc32": str(zlib.crc32(b"{}"))}


@pytest.mark.parametrize("words", [None, {}, HEADLESS, HEADLESS | {"head_crc32": "0"}])
@pytest.mark.parametrize("kv", [torch.zeros(2, 3, 4, 2, 8), torch.zeros(3), torch.zeros(())])
def test_a_file_of_somebody_elses_is_refused_by_whoever_meets_it_first(tmp_path, words, kv):
    files = SegmentFiles(tmp_path, "weights")
    file = tmp_path / "a.safetensors"

    save_file({"kv": kv}, file, words)
    assert files.heads() == []
    save_file({"kv": kv}, file, words)
    with pytest.raises(Corrupt):
        files.read("a")

    assert files.refused == 2
    assert not file.exists()


def test_every_flipped_bit_of_a_file_is_found(tmp_path):
    files = SegmentFiles(tmp_path, "weights")
    files.heads()
    kv = make_pool().read(slots([1], 1))
    files.write(head("a", 1), kv)
    file = tmp_path / "a.safetensors"
    whole = file.read_bytes()
    for bit in range(0, len(whole) * 8, 37):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        again = SegmentFiles(tmp_path, "weights")
        try:
            served = again.heads() == [head("a", 1)] and torch.equal(again.read("a"), kv)
        except Corrupt:
            served = False
        # A bit of white space or of the key's spelling may be none that matters.
        assert served or again.refused == 1
