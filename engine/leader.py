"""The first of several ranks: spawns the others, hands each plan on, and speaks for them all.

A follower is a process with a share of every layer's heads (`engine/follower.py`). It is told of a
step before this rank computes it, for neither can finish one alone. Only here are tokens drawn. A
segment is parked or restored once it is so on every rank. A follower that ends, ends the engine: no
rank can go on without it, and whoever looks after the engine starts all of them again.
"""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import msgspec

from engine.api import Sampling
from engine.config import EngineConfig
from engine.errors import EngineError, EngineLost, Misconfigured
from engine.follower import END, Carried, Joined, Note, Refused
from engine.model.ranks import Ranks
from engine.model.runner import ModelRunner
from engine.step import (
    Arrival,
    Arrivals,
    Draw,
    Drop,
    Handle,
    Park,
    Plan,
    Run,
    SegmentHead,
    Spill,
    StepResult,
    TransferId,
)
from engine.terms import Tier

CLOSING_S = 10.0
"""How long a follower that was told to end may take: its transfers are over by then."""

_DRAWN_HERE = Draw(sampling=Sampling(), seed=0, prompt_ids=(), output_ids=())
"""Has a follower compute a run's logits; what is drawn from them is not its business."""


class _Follower:
    """One other rank's process, and this end of the channel to it."""

    def __init__(self, config: EngineConfig, ranks: Ranks, rank: int) -> None:
        self.name = f"rank {rank} of {ranks.size}"
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  our own interpreter, our own module
                [
                    *(sys.executable, "-m", "engine.follower"),
                    msgspec.json.encode(config, enc_hook=str).decode(),
                    *(str(rank), str(ranks.meeting), str(theirs.fileno())),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self.channel = Connection(ours.detach())
        self.joined: Future[Joined] = Future()


class Followers:
    """The other ranks' processes; none where the model is on one device."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder: Path | None = None
        if config.tensor_parallel > 1:
            self._folder = Path(tempfile.mkdtemp(prefix="keepwarm-"))
        meeting = None if self._folder is None else self._folder / "meeting"
        self.ranks = Ranks(0, config.tensor_parallel, meeting)
        self.loss: Future[None] = Future()
        """Never has a result; its exception is what the engine ends with."""
        self._losing = threading.Lock()
        self._is_closing = False
        self._carried: Callable[[Arrival], None] | None = None
        self._members = [
            _Follower(config, self.ranks, rank) for rank in range(1, config.tensor_parallel)
        ]
        for member in self._members:
            listening = threading.Thread(target=self._listen, args=(member,), daemon=True)
            listening.start()

    async def lost(self) -> NoReturn:
        """Wait for one of them to end, then raise `EngineLost`, or `Misconfigured` if it says so."""
        await asyncio.shield(asyncio.wrap_future(self.loss))
        raise AssertionError("a loss has no result")

    def joined(self) -> list[Joined]:
        """What each has, once all have joined. Raises `EngineLost`, `Misconfigured`."""
        return [member.joined.result() for member in self._members]

    def tell(self, carried: Callable[[Arrival], None]) -> None:
        """Who hears of each transfer that is over on one of them, on any thread."""
        self._carried = carried

    def send(self, plan: Plan) -> None:
        """Raises `EngineLost` where one of them is gone."""
        self._send(msgspec.msgpack.encode(plan, enc_hook=list))  # ids may be arrays

    def close(self) -> None:
        """Have them end in order; all transfers are over."""
        with contextlib.suppress(EngineLost):
            self._is_closing = True
            self._send(END)
        self.ranks.leave()
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(CLOSING_S)
        self.stop()

    def stop(self) -> None:
        """End them by force, and leave nothing behind. Idempotent."""
        self._is_closing = True
        for member in self._members:
            member.process.kill()
            member.process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, order: bytes) -> None:
        for member in self._members:
            try:
                member.channel.send_bytes(order)
            except OSError as error:
                raise EngineLost(f"{member.name} is gone: {error}") from error

    def _listen(self, member: _Follower) -> None:
        """On a thread of its own: the follower's notes, then its end."""
        decoder: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)
        with contextlib.suppress(EOFError, OSError):
            while True:
                match decoder.decode(member.channel.recv_bytes()):
                    case Joined() as joined:
                        member.joined.set_result(joined)
                    case Carried(arrival=arrival):
                        assert self._carried is not None
                        self._carried(arrival)
                    case Refused(message=message):
                        self._lose(Misconfigured(message))
        status = member.process.wait()
        self._lose(EngineLost(f"{member.name} ended with status {status}"))

    def _lose(self, error: EngineError) -> None:
        with self._losing:
            if self._is_closing or self.loss.done():
                return
            self.loss.set_exception(error)
            for member in self._members:
                if not member.joined.done():
                    member.joined.set_exception(error)


class Leader:
    """A `Runner` over all ranks: this one's, and those that follow."""

    def __init__(self, runner: ModelRunner, followers: Followers) -> None:
        self._runner = runner
        self._followers = followers
        self._lock = threading.Lock()
        self._arrivals: Arrivals | None = None
        # By transfer: what ranks have told of it, and what those that write are to write.
        self._told: dict[TransferId, list[Arrival]] = {}
        self._written: dict[TransferId, Drop] = {}
        self._drops: list[Drop] = []

    def tell(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._followers.tell(self._carried)
        self._runner.tell(self._carried)

    def parked(self) -> list[SegmentHead]:
        """What an earlier life left on the disk of every rank, longest unused first.

        What is not on all of them is let go with the first plan.
        """
        heads = self._runner.parked()
        others = (joined.parked for joined in self._followers.joined())
        held = [frozenset(head.name for head in heads), *others]
        whole = frozenset.intersection(*held)
        self._drops = [Drop(tier=Tier.DISK, name=name) for name in frozenset().union(*held) - whole]
        return [head for head in heads if head.name in whole]

    @property
    def refused(self) -> int:
        """How many files of parked KV any rank refused, once all have looked."""
        others = sum(joined.refused for joined in self._followers.joined())
        return self._runner.refused + others

    def launch(self, plan: Plan) -> Handle:
        plan = self._with_drops(plan)
        self._followers.send(msgspec.structs.replace(plan, runs=tuple(map(_undrawn, plan.runs))))
        return self._runner.launch(plan)

    def collect(self, handle: Handle) -> StepResult:
        return self._runner.collect(handle)

    def close(self) -> None:
        self._runner.close()
        self._followers.close()

    def _with_drops(self, plan: Plan) -> Plan:
        with self._lock:
            for order in plan.transfers:
                match order:
                    case Park(tier=tier, head=head):
                        self._written[order.transfer_id] = Drop(tier=tier, name=head.name)
                    case Spill(head=head):
                        self._written[order.transfer_id] = Drop(tier=Tier.DISK, name=head.name)
                    case _:
                        pass
            drops, self._drops = self._drops, []
        if not drops:
            return plan
        return msgspec.structs.replace(plan, transfers=(*plan.transfers, *drops))

    def _carried(self, arrival: Arrival) -> None:
        """A transfer is over on one rank, and for others once it is so on all."""
        with self._lock:
            told = self._told.setdefault(arrival.transfer_id, [])
            told.append(arrival)
            if len(told) < self._followers.ranks.size:
                return
            del self._told[arrival.transfer_id]
            written = self._written.pop(arrival.transfer_id, None)
            pieces = min(one.pieces for one in told)
            if written is not None and not pieces:
                self._drops.append(written)
        assert self._arrivals is not None
        seconds = max(one.seconds for one in told)
        self._arrivals(msgspec.structs.replace(arrival, pieces=pieces, seconds=seconds))


def _undrawn(run: Run) -> Run:
    return run if run.draw is None else msgspec.structs.replace(run, draw=_DRAWN_HERE)
