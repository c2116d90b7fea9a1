"""`python -m engine.follower CONFIG RANK MEETING CHANNEL`: another rank of a model on several devices.

It carries out each plan that the leader hands it on its own share of the heads, so that the sums of
every layer are whole, and draws nothing. It tells when it is ready and what its transfers came to.
It ends when it is told to, when a plan fails, or when its leader is gone; nobody starts it again.
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.model.load import load
from engine.model.ranks import Ranks
from engine.model.runner import ModelRunner
from engine.model.source import log
from engine.step import Arrival, Plan

END = b""
"""Instead of a plan: finish the transfers, then end."""


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag="joined"):
    """It has its share of the model, and of what was parked these segments, by name.

    `refused`: how many files of others were damaged or of other weights, and are deleted.
    """

    parked: frozenset[str]
    refused: int


class Carried(msgspec.Struct, frozen=True, kw_only=True, tag="carried"):
    arrival: Arrival


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It cannot start as configured."""

    message: str


Note = Joined | Carried | Refused


class Follower:
    """One rank's end of the channel to its leader. Notes may be told on any thread."""

    def __init__(self, channel: Connection, ranks: Ranks) -> None:
        self._channel = channel
        self._ranks = ranks
        self._telling = threading.Lock()
        # Bounded by the leader, which computes each step with its followers.
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="leader", daemon=True).start()

    def run(self, config: EngineConfig) -> int:
        """Until told to end; the process's exit status."""
        try:
            runner = ModelRunner(load(config, log.debug, self._ranks), config)
        except Misconfigured as error:
            self._tell(Refused(message=str(error)))
            return 2
        runner.tell(lambda arrival: self._tell(Carried(arrival=arrival)))
        parked = frozenset(head.name for head in runner.parked())
        self._tell(Joined(parked=parked, refused=runner.refused))
        runner.warm_up()
        decoder = msgspec.msgpack.Decoder(Plan)
        while (order := self._orders.get()) != END:
            runner.follow(decoder.decode(order))
        runner.close()
        self._ranks.leave()
        return 0

    def _listen(self) -> None:
        """Whatever this rank waits for, it ends with its leader, and leaves nothing behind."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._orders.put(self._channel.recv_bytes())
        assert self._ranks.meeting is not None
        shutil.rmtree(self._ranks.meeting.parent, ignore_errors=True)
        os._exit(1)

    def _tell(self, note: Note) -> None:
        with self._telling:
            self._channel.send_bytes(msgspec.msgpack.encode(note))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.follower", description=__doc__)
    parser.add_argument("config", help="EngineConfig as JSON")
    parser.add_argument("rank", type=int)
    parser.add_argument("meeting", type=Path, help="the file by which the ranks find each other")
    parser.add_argument("channel", type=int, help="an inherited socket to the leader")
    options = parser.parse_args()
    # Both reach whole groups of processes; it is the leader that decides what they mean.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    config = msgspec.json.decode(options.config, type=EngineConfig, dec_hook=_of_text)
    ranks = Ranks(options.rank, config.tensor_parallel, options.meeting)
    return Follower(Connection(options.channel), ranks).run(config)


def _of_text(kind: type, text: str) -> object:
    """A path arrives as its text."""
    return kind(text)


if __name__ == "__main__":
    status = main()
    # The interpreter would take seconds to take torch apart.
    os._exit(status)
