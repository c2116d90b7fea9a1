"""The thread that computes: plan, run, commit, for as long as there is something to compute.

It alone touches the core and the runner, and it alone reads the clock. Others hand it commands,
which it obeys between two steps, and hear from it once a step. With nothing to do it sleeps on its
inbox. Any exception ends it: the cache's books may be wrong after one, so nothing goes on.
"""

import queue
import threading
import time
from collections.abc import Callable

from engine.core import Core
from engine.outcome import CoreEvent
from engine.step import Arrival, Runner

Command = Callable[[Core, float], object]
"""What to do with the core, and the time at which it is done."""


class Worker:
    """`publish` and `fail` are called on this thread; they must neither block nor raise."""

    def __init__(
        self,
        core: Core,
        runner: Runner,
        publish: Callable[[list[CoreEvent]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._core = core
        self._runner = runner
        self._publish = publish
        self._fail = fail
        # Bounded by those who fill it: a job has one submit, one cancel and one stop in here.
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)
        runner.tell(self._hear)

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        """From any thread; after `stop` or a failure nobody obeys any more."""
        self._inbox.put(command)

    def stop(self) -> None:
        """Obey what was posted before, park what is warm, then end. Does not wait."""
        self._inbox.put(None)

    def join(self) -> None:
        self._thread.join()

    def _live(self) -> None:
        try:
            idle = False
            while self._obey(wait=idle):
                idle = not self._step()
            self._core.close()
            while self._step() or self._core.is_moving:
                self._obey(wait=self._core.is_moving)
            self._runner.close()
            self._tell(self._core.take_events())
        except BaseException as error:  # noqa: BLE001  whatever it is, somebody must be told
            self._fail(error)

    def _obey(self, *, wait: bool) -> bool:
        """Empty the inbox; False when told to end."""
        if wait and not self._obey_one():
            return False
        while not self._inbox.empty():
            if not self._obey_one():
                return False
        return True

    def _obey_one(self) -> bool:
        command = self._inbox.get()
        if command is None:
            return False
        command(self._core, time.monotonic())
        return True

    def _step(self) -> bool:
        """One step and its news; False when there was nothing to run."""
        plan = self._core.plan(time.monotonic())
        if plan is None:
            self._tell(self._core.take_events())
            return False
        result = self._runner.collect(self._runner.launch(plan))
        self._tell(self._core.commit(result, time.monotonic()))
        return True

    def _hear(self, arrival: Arrival) -> None:
        """On a thread of the runner's: a transfer is over."""
        self.post(lambda core, _: core.arrived(arrival))

    def _tell(self, events: list[CoreEvent]) -> None:
        if events:
            self._publish(events)
