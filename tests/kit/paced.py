"""The real engine at a test's pace: the step that a test describes waits until it is let go.

So every state of an answer can be met, however fast the machine is. What is held is a step that is planned
already, and the engine obeys nothing meanwhile; a cancel lets it go, and is obeyed when it is computed.
"""

import threading
from collections.abc import Callable

from engine.api import Cancelled, JobId
from engine.assembly import Parts
from engine.core import Core
from engine.local import LocalEngine
from engine.step import Arrivals, Handle, Plan, Runner, StepResult

Described = Callable[[Core, Plan], bool]


def somebody_waits(core: Core, _: Plan) -> bool:
    """All seats are taken."""
    return len(core._scheduler.waiting) > 0


def reads(_: Core, plan: Plan) -> bool:
    """A part of a prompt that does not end it."""
    return any(run.draw is None for run in plan.runs)


def has_said(tokens: int) -> Described:
    """An answer has so many tokens, or more, and gets the next one."""

    def says(_: Core, plan: Plan) -> bool:
        return any(run.draw and len(run.draw.output_ids) >= tokens for run in plan.runs)

    return says


class PacedEngine(LocalEngine):
    """One step at most is held, and what comes behind it."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._reins = _Reins(parts.runner, parts.core)
        self._worker._runner = self._reins

    def hold(self, step: Described) -> None:
        """Go on from where it is held to the next step like this."""
        self._reins.take(_Hold(step))

    def release(self) -> None:
        self._reins.take(None)

    @property
    def is_held(self) -> bool:
        return self._reins.is_held

    async def cancel(self, job_id: JobId) -> Cancelled:
        self._loop.call_soon(self.release)  # it is in the worker's inbox by then
        return await super().cancel(job_id)


class _Hold:
    def __init__(self, step: Described) -> None:
        self.step = step
        self.reached = threading.Event()
        self.over = threading.Event()


class _Reins(Runner):
    """Stands before the runner, on the thread that computes."""

    def __init__(self, runner: Runner, core: Core) -> None:
        self._runner = runner
        self._core = core
        self._hold: _Hold | None = None

    def take(self, hold: _Hold | None) -> None:
        """In place of what was held before, which goes on."""
        last, self._hold = self._hold, hold
        if last is not None:
            last.over.set()

    @property
    def is_held(self) -> bool:
        hold = self._hold
        return hold is not None and hold.reached.is_set()

    def tell(self, arrivals: Arrivals) -> None:
        self._runner.tell(arrivals)

    def launch(self, plan: Plan) -> Handle:
        while (hold := self._hold) is not None and hold.step(self._core, plan):
            hold.reached.set()
            hold.over.wait()
        return self._runner.launch(plan)

    def collect(self, handle: Handle) -> StepResult:
        return self._runner.collect(handle)

    def close(self) -> None:
        self._runner.close()
