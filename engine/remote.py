"""An engine in its own process: asks it, watches it, starts it again and asks again.

When the process dies or hangs, a new one takes over all that was asked: calls are sent again, and
jobs with the tokens already sent as `resumed_output`, so that readers see a pause and the answer
that an undisturbed engine would have given. Imports no torch. Belongs to one event loop.

    serves ──> starts again ──> away ──> serves        ended by `aclose` alone
       └─────────────┴────────────┘

Away, nothing is kept waiting: whoever asks is told at once, until one of the tries brings an engine.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Self, TypeVar

import msgspec

from engine import wire
from engine.api import (
    CacheEvent,
    CacheSnapshot,
    Cancelled,
    Delta,
    Finished,
    Job,
    JobEvent,
    JobId,
    LeaseState,
    ModelCard,
    Rendered,
    RenderRequest,
    Started,
    Stats,
    Subject,
    Wish,
)
from engine.config import EngineConfig
from engine.errors import Corrupt, EngineClosed, EngineError, EngineLost, InvalidJob
from engine.flight import Flight, Flights, refused
from engine.process import EngineProcess, first_of

log = logging.getLogger("keepwarm.engine")

WATCH_EVENTS = 1024
"""Cache events kept for a watcher that does not read; beyond it sees a gap, as the contract says."""

_Reply = TypeVar("_Reply", bound=wire.ReplyBody)


class Care(msgspec.Struct, frozen=True, kw_only=True):
    """How the process is looked after."""

    heartbeat_s: float = 10.0
    hung_s: float = 60.0
    """A heartbeat passes through the thread that computes, so this outlasts the longest step."""
    restarts: int = 5
    """In a row, without a token or a heartbeat between; then it is away."""
    backoff_s: float = 0.2
    away_s: float = 10.0
    """Between two tries while it is away: the memory or the disk that it lacks may be free again."""
    losses: int = 3
    """What was in flight in so many lost engines, without a token between, is given up: it may be what
    kills them. Those that would be next are asked one at a time, so that it goes alone."""
    closing_s: float = 30.0
    """For parking what is warm: 2 GiB take 20 s on a slow disk."""


class _Question:
    """A call with one reply, kept until it is answered so that it can be asked again."""

    def __init__(self, call: wire.Call) -> None:
        self.call = call
        self.losses = 0
        self.is_asked = False
        """Of a process, which may be lost with it."""
        self.answer: asyncio.Future[wire.ReplyBody] = asyncio.get_running_loop().create_future()


class RemoteEngine:
    """`Engine` over a supervised process."""

    def __init__(
        self,
        config: EngineConfig,
        process: EngineProcess,
        care: Care,
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._care = care
        self._report = report
        self._process: EngineProcess | None = process
        self._started = asyncio.Event()
        self._started.set()
        self._ended: EngineError | None = None
        self._away: EngineLost | None = None
        self._closing = asyncio.Lock()
        self._failures = 0
        self._restarts = 0
        self._request_ids = itertools.count(1)
        self._flights = Flights(care.losses)
        self._questions: dict[int, _Question] = {}
        self._watchers: dict[int, asyncio.Queue[CacheEvent | EngineError]] = {}
        self._supervisor = asyncio.create_task(self._supervise(process))

    @classmethod
    async def open(
        cls,
        config: EngineConfig,
        *,
        care: Care | None = None,
        report: Callable[[str], None] = log.info,
    ) -> Self:
        """Return when the engine is ready. Raises `Misconfigured` or `EngineLost`."""
        process = await EngineProcess.start(config, report)
        return cls(config, process, care or Care(), report)

    @property
    def pid(self) -> int | None:
        """Of the process that serves now; None while there is none."""
        return None if self._process is None else self._process.pid

    # ------------------------------------------------------------ the nine calls

    async def info(self) -> ModelCard:
        await self._started.wait()
        self._raise_if_gone()
        assert self._process is not None
        return self._process.card

    async def render(self, request: RenderRequest) -> Rendered:
        return (await self._ask(wire.Render(request=request), wire.RenderReply)).rendered

    async def generate(self, job: Job) -> AsyncGenerator[JobEvent, None]:
        self._raise_if_gone()
        try:
            flight = Flight(job)
            call = self._call(wire.Generate(job=flight.job))
            flight.is_asked = self._send(call)
        except InvalidJob as error:
            yield refused(job.job_id, error)
            return
        self._flights[call.request_id] = flight
        try:
            async for event in flight.stream:
                yield event
        finally:
            if self._flights.pop(call.request_id, None) is not None:
                self._drop(call)
                self._ask_suspect()

    async def cancel(self, job_id: JobId) -> Cancelled:
        return (await self._ask(wire.Cancel(job_id=job_id), wire.CancelReply)).cancelled

    async def lease(self, subject: Subject, wish: Wish) -> LeaseState:
        return (await self._ask(wire.Lease(subject=subject, wish=wish), wire.LeaseReply)).lease

    async def stats(self) -> Stats:
        told = (await self._ask(wire.ReadStats(), wire.StatsReply)).stats
        return msgspec.structs.replace(told, restarts=self._restarts)

    async def snapshot(self, *, tree: bool = True) -> CacheSnapshot:
        return (await self._ask(wire.ReadSnapshot(tree=tree), wire.SnapshotReply)).snapshot

    async def watch(self, after: int) -> AsyncGenerator[CacheEvent, None]:
        self._raise_if_gone()
        call = self._call(wire.Watch(after=after))
        arriving: asyncio.Queue[CacheEvent | EngineError] = asyncio.Queue(WATCH_EVENTS)
        self._watchers[call.request_id] = arriving
        try:
            self._send(call)
            while isinstance(event := await arriving.get(), CacheEvent):
                yield event
            raise event
        finally:
            del self._watchers[call.request_id]
            self._drop(call)

    async def aclose(self) -> None:
        async with self._closing:
            if self._ended is None:
                self._ended = EngineClosed("the engine was closed")
                await self._drain()
            self._supervisor.cancel()
            await asyncio.wait((self._supervisor,))
            self._end(self._ended)

    # ------------------------------------------------------------ asking

    def _call(self, body: wire.CallBody) -> wire.Call:
        return wire.Call(request_id=next(self._request_ids), body=body)

    def _send(self, call: wire.Call) -> bool:
        """False while there is no process: the next one is asked everything again."""
        if self._process is not None:
            self._process.send(call)
        return self._process is not None

    def _drop(self, call: wire.Call) -> None:
        self._send(wire.Call(request_id=call.request_id, body=wire.Drop()))

    async def _ask(self, body: wire.CallBody, kind: type[_Reply]) -> _Reply:
        self._raise_if_gone()
        return await self._answer(body, kind)

    async def _answer(self, body: wire.CallBody, kind: type[_Reply]) -> _Reply:
        question = _Question(self._call(body))
        self._questions[question.call.request_id] = question
        try:
            question.is_asked = self._send(question.call)
            reply = await question.answer
        finally:
            del self._questions[question.call.request_id]
        if not isinstance(reply, kind):
            raise Corrupt(f"the engine answered {type(reply).__name__}, not {kind.__name__}")
        return reply

    def _raise_if_gone(self) -> None:
        if gone := self._ended or self._away:
            raise gone

    # ------------------------------------------------------------ hearing

    async def _hear(self, process: EngineProcess) -> None:
        while True:
            match await process.receive():
                case wire.Replies(replies=replies):
                    for reply in replies:
                        self._deliver(reply)
                case note:
                    raise Corrupt(f"the engine said {type(note).__name__} while running")

    def _deliver(self, reply: wire.Reply) -> None:
        """Hand a reply to whoever asked; those who left meanwhile are not missed."""
        request_id = reply.request_id
        match reply.body:
            case Started() | Delta() | Finished() as event:
                if flight := self._flights.get(request_id):
                    self._take(request_id, flight, event)
            case wire.WatchReply(event=change):
                _offer(self._watchers.get(request_id), change)
            case wire.FailedReply(failure=failure):
                self._deliver_error(request_id, wire.error_of(failure))
            case body:
                question = self._questions.get(request_id)
                if question and not question.answer.done():
                    question.answer.set_result(body)

    def _take(self, request_id: int, flight: Flight, event: JobEvent) -> None:
        was_suspect = self._flights.is_suspect(flight)
        flight.take(event)
        if isinstance(event, Delta):
            self._failures = 0
        elif isinstance(event, Finished):
            del self._flights[request_id]
        if was_suspect:
            self._ask_suspect()

    def _deliver_error(self, request_id: int, error: EngineError) -> None:
        if flight := self._flights.pop(request_id, None):
            flight.stream.fail(error)
            self._ask_suspect()
        question = self._questions.get(request_id)
        if question and not question.answer.done():
            question.answer.set_exception(error)
        _offer(self._watchers.get(request_id), error)

    # ------------------------------------------------------------ supervision

    async def _supervise(self, process: EngineProcess) -> None:
        """Attend one process after another until closed."""
        try:
            while True:
                await self._attend(process)
                self._raise_if_gone()
                process = await self._start_again()
                self._adopt(process)
        except EngineError as error:
            self._end(error if isinstance(error, EngineClosed) else EngineLost(str(error)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._end(EngineLost(f"the engine's supervisor failed: {error!r}"))
            raise

    async def _attend(self, process: EngineProcess) -> None:
        """Listen until the process is lost; then make sure that it is gone."""
        try:
            await first_of(process.lost(), self._hear(process), self._feel_pulse())
        except EngineError as error:
            if self._ended is None:
                log.error("%s", error)
        finally:
            self._process = None
            self._started.clear()
            self._count_losses()
            await process.stop(patience_s=self._care.closing_s if self._ended else 0)

    async def _feel_pulse(self) -> None:
        while True:
            await asyncio.sleep(self._care.heartbeat_s)
            try:
                async with asyncio.timeout(self._care.hung_s):
                    await self._answer(wire.ReadStats(), wire.StatsReply)
            except EngineClosed:
                continue  # asked while it closes, which is not a reason to stop listening
            except TimeoutError:
                raise EngineLost(f"the engine did not answer in {self._care.hung_s} s") from None
            self._failures = 0

    async def _start_again(self) -> EngineProcess:
        """Tried for ever: what it lacks, such as memory, disk or the model's file, may come back."""
        while True:
            if self._failures < self._care.restarts:
                await asyncio.sleep(self._care.backoff_s * (2**self._failures - 1))
            else:
                self._tell_away()
                await asyncio.sleep(self._care.away_s)
            self._failures += 1
            try:
                return await EngineProcess.start(self._config, self._report)
            except EngineError as error:
                log.error("%s", error)

    def _tell_away(self) -> None:
        """Whoever waits is told, and whoever comes is told at once."""
        self._away = EngineLost(f"the engine died {self._failures + 1} times in a row")
        self._started.set()
        self._fail_all(self._away)

    def _adopt(self, process: EngineProcess) -> None:
        """Ask the new process all that is unanswered: jobs first, since cancels refer to them."""
        self._process = process
        self._restarts += 1
        self._away = None
        self._started.set()
        for request_id, flight in self._flights.items():
            if not self._flights.is_suspect(flight):
                self._resubmit(request_id, flight)
        self._ask_suspect()
        for question in self._questions.values():
            question.is_asked = self._send(question.call)
        for request_id in self._watchers:
            process.send(wire.Call(request_id=request_id, body=wire.Watch(after=0)))

    def _resubmit(self, request_id: int, flight: Flight) -> None:
        body = wire.Generate(job=flight.resumed())
        flight.is_asked = self._send(wire.Call(request_id=request_id, body=body))

    def _ask_suspect(self) -> None:
        if suspect := self._flights.next_suspect():
            self._resubmit(*suspect)

    def _count_losses(self) -> None:
        """Give up what was asked once too often; the rest is for the next engine."""
        for flight in self._flights.lose():
            flight.fail(EngineLost(f"{flight.losses} engines were lost while this job ran"))
        for request_id, question in list(self._questions.items()):
            question.losses += question.is_asked
            if question.losses >= self._care.losses:
                error = EngineLost(f"{question.losses} engines were lost while this was asked")
                self._deliver_error(request_id, error)

    async def _drain(self) -> None:
        """Let the engine finish what runs as cancelled, and close in order."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(self._care.closing_s):
                await self._answer(wire.Close(), wire.ClosedReply)
        except (TimeoutError, EngineError) as error:
            log.warning("the engine did not close in order: %s", error)

    def _end(self, error: EngineError) -> None:
        """Nothing more will be answered; whoever waits learns why."""
        self._ended = self._ended or error
        self._started.set()
        self._fail_all(error)

    def _fail_all(self, error: EngineError) -> None:
        for request_id in [*self._flights, *self._questions, *self._watchers]:
            self._deliver_error(request_id, error)


def _offer(
    arriving: "asyncio.Queue[CacheEvent | EngineError] | None", event: CacheEvent | EngineError
) -> None:
    """Never wait for a watcher: the oldest goes, and the numbers show the gap."""
    if arriving is None:
        return
    if arriving.full():
        arriving.get_nowait()
    arriving.put_nowait(event)
