"""Carries KV between the pool and lower tiers, beside the thread that computes.

Owns the bytes of host segments and the two threads that move them: one reads, one writes, each in
the order of the transfers that it was given. What lies nowhere any more is zeroed, as blocks are. Refuses
to decide: what is parked, restored or let go is ordered, and that nobody changes a slot meanwhile is the
orderer's promise.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from engine.errors import Corrupt
from engine.model.lane import Lane, Mark
from engine.model.pool import Pool
from engine.model.segments import SegmentFiles
from engine.step import (
    Arrival,
    Arrivals,
    Drop,
    HandOver,
    Park,
    Restore,
    SegmentHead,
    Spill,
    Transfer,
)
from engine.terms import Tier

log = logging.getLogger("keepwarm.engine")


class Carrier:
    """Moves segments until it is closed; `arrivals` is told, on the thread that moved."""

    def __init__(self, pool: Pool, files: SegmentFiles | None, arrivals: Arrivals) -> None:
        self._pool = pool
        self._files = files
        self._arrivals = arrivals
        self._host: dict[str, torch.Tensor] = {}
        self._reading = ThreadPoolExecutor(1, "restore")
        self._writing = ThreadPoolExecutor(1, "park")
        self._up, self._down = Lane(pool.device), Lane(pool.device)

    def carry(self, transfers: Sequence[Transfer]) -> None:
        """Start transfers, behind what this thread has launched; never waits."""
        for transfer in transfers:
            match transfer:
                case Restore():
                    self._reading.submit(self._restore, transfer, self._up.ordered())
                case Park() | Spill():
                    self._writing.submit(self._write, transfer, self._down.ordered())
                case Drop():
                    self._writing.submit(self._drop, transfer)
                case HandOver():
                    self._writing.submit(self._hand_over, transfer)

    def clear(self) -> None:
        """Have the folder rid of what was refused there, before anything else is written."""
        if self._files is not None:
            self._writing.submit(self._files.clear)

    def close(self) -> None:
        """Finish what was started, then end."""
        self._reading.shutdown()
        self._writing.shutdown()

    # ------------------------------------------------------------ on the reading thread

    def _restore(self, order: Restore, mark: Mark) -> None:
        started = time.monotonic()
        pieces = 0
        try:
            with self._up.behind(mark):
                for piece in order.pieces:
                    kv = self._read(piece.tier, piece.name)
                    self._pool.write(piece.slots, kv, piece.skip)
                    pieces += 1
        except Exception as error:  # noqa: BLE001  whatever it is, the sequence must hear of it
            log.warning("a parked segment was not restored: %s", error)
        self._arrive(order, pieces, started)

    def _read(self, tier: Tier, name: str) -> torch.Tensor:
        if tier is Tier.HOST:
            return self._host[name]
        if self._files is None:
            raise Corrupt("there is no disk tier")
        return self._files.read(name)

    # ------------------------------------------------------------ on the writing thread

    def _write(self, order: Park | Spill, mark: Mark) -> None:
        started = time.monotonic()
        written = 0
        try:
            if isinstance(order, Spill):
                self._store(Tier.DISK, order.head, self._host[order.head.name])
            else:
                with self._down.behind(mark):
                    kv = self._pool.read(order.slots)
                try:
                    self._store(order.tier, order.head, kv)
                finally:
                    if order.tier is not Tier.HOST:
                        kv.zero_()
            written = 1
        except Exception as error:  # noqa: BLE001  its source stays locked until this is heard of
            log.warning("a segment was not parked: %s", error)
        self._arrive(order, written, started)

    def _store(self, tier: Tier, head: SegmentHead, kv: torch.Tensor) -> None:
        if tier is Tier.HOST:
            self._host[head.name] = kv
        elif self._files is not None:
            self._files.write(head, kv)
        else:
            raise Corrupt("there is no disk tier")

    def _drop(self, order: Drop) -> None:
        if order.tier is Tier.HOST:
            kv = self._host.pop(order.name, None)
            if kv is not None:
                # As a block that falls free: memory is given to others as it is.
                kv.zero_()
        elif self._files is not None:
            self._files.drop(order.name)

    def _hand_over(self, order: HandOver) -> None:
        if self._files is not None:
            self._files.hand_over(order.head)

    def _arrive(self, order: Park | Spill | Restore, pieces: int, started_s: float) -> None:
        seconds = time.monotonic() - started_s
        self._arrivals(Arrival(transfer_id=order.transfer_id, pieces=pieces, seconds=seconds))
