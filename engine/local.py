"""An engine in this process: a thread that computes, and this event loop, which does the text.

A step's news arrive here in one post. Detokenising, stop strings and the names of logprobs happen
on this side while the thread already computes the next step: a stop string is therefore found one
step late, and what was drawn beyond it is cut from ids, KV and receipt.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, Self, TypeVar

import msgspec

from engine.api import (
    CacheEvent,
    CacheSnapshot,
    Cancelled,
    Grammar,
    Job,
    JobEvent,
    JobId,
    LeaseState,
    ModelCard,
    Rendered,
    RenderRequest,
    Stats,
    Subject,
    Wish,
)
from engine.assembly import MakeCache, Parts, assemble
from engine.config import EngineConfig
from engine.core import Core
from engine.errors import (
    EngineClosed,
    EngineError,
    EngineLost,
    InvalidGrammar,
    InvalidJob,
    Refused,
)
from engine.flight import prepared, refused
from engine.leader import Followers
from engine.model.grammar import Compiled
from engine.model.hardware import hardware
from engine.model.template import Renderer
from engine.outcome import CoreEvent, Ended
from engine.parts import new_cache
from engine.process import first_of
from engine.reply import Reply
from engine.worker import Worker

log = logging.getLogger("keepwarm.engine")

COMPILE_S = 5.0
"""Beyond it a grammar is refused; what the library's own limits let pass takes a second."""

_Answer = TypeVar("_Answer")


class LocalEngine:
    """`Engine` on this loop and one thread of its own. Made by `open`."""

    def __init__(self, parts: Parts) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts = parts
        # One thread: a tokenizer must not be entered twice while it is told how to truncate.
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")
        # One thread of their own: a large schema delays no text, and one core at most.
        self._compiling = ThreadPoolExecutor(1, "grammar")
        self._replies: dict[JobId, Reply] = {}
        self._questions: set[asyncio.Future[Any]] = set()
        self._changed = asyncio.Event()
        self._failed = asyncio.Event()
        self._ended: EngineError | None = None
        self._closing = asyncio.Lock()
        self._worker = Worker(parts.core, parts.ranks, self._publish, self._fail)
        self._worker.start()
        parts.followers.loss.add_done_callback(self._lose)

    @classmethod
    async def open(
        cls,
        config: EngineConfig,
        *,
        report: Callable[[str], None] = log.info,
        make_cache: MakeCache = new_cache,
    ) -> Self:
        """Return when the engine is ready; `report` is called on another thread.

        Raises `Misconfigured`, or `EngineLost` where a rank of its is gone.
        """
        followers = Followers(config)
        try:
            assembling = asyncio.to_thread(assemble, config, report, make_cache, followers)
            parts = await first_of(assembling, followers.lost())
        except BaseException:
            followers.stop()
            raise
        return cls(parts)

    # ------------------------------------------------------------ the nine calls

    async def info(self) -> ModelCard:
        self._raise_if_ended()
        return self._parts.card

    async def render(self, request: RenderRequest) -> Rendered:
        self._raise_if_ended()
        await self._compiled(request.grammar)
        renderer = self._parts.renderer
        return await self._loop.run_in_executor(self._tokenizing, _render, renderer, request)

    async def generate(self, job: Job) -> AsyncGenerator[JobEvent, None]:
        self._raise_if_ended()
        try:
            reply = self._expect(prepared(job))
        except InvalidJob as error:
            yield refused(job.job_id, error)
            return
        try:
            # Held to the end, so that the thread that computes finds it.
            grammar = await self._compiled(job.grammar)  # noqa: F841
            await self._ask(lambda core, now: core.submit(reply.job, now))
            self._stop_if_found(reply)
            async for event in reply.stream:
                yield event
        except Refused as error:
            yield refused(job.job_id, error)
        finally:
            self._let_go(reply)

    async def cancel(self, job_id: JobId) -> Cancelled:
        return await self._ask(lambda core, now: core.cancel(job_id, now))

    async def lease(self, subject: Subject, wish: Wish) -> LeaseState:
        state = await self._ask(lambda core, now: core.lease(subject, wish, now))
        self._wake_watchers()
        return state

    async def stats(self) -> Stats:
        stats = await self._ask(lambda core, _: core.stats())
        return msgspec.structs.replace(stats, hardware=hardware(self._parts.device))

    async def snapshot(self, *, tree: bool = True) -> CacheSnapshot:
        return await self._ask(lambda core, now: core.snapshot(now, tree=tree))

    async def watch(self, after: int) -> AsyncGenerator[CacheEvent, None]:
        while True:
            changed = self._changed
            for event in await self._ask(functools.partial(_changes, after)):
                after = event.sequence_number
                yield event
            await changed.wait()

    async def aclose(self) -> None:
        async with self._closing:
            if self._ended is None:
                self._ended = EngineClosed("the engine was closed")
                await self._drain()
            self._end(self._ended)
            self._parts.followers.stop()
            self._tokenizing.shutdown(wait=False)
            self._compiling.shutdown(wait=False)

    async def failed(self) -> NoReturn:
        """Wait for the computing thread to fail, then raise `EngineLost`."""
        await self._failed.wait()
        assert self._ended is not None
        raise self._ended

    # ------------------------------------------------------------ asking the worker

    def _expect(self, job: Job) -> Reply:
        if job.job_id in self._replies:
            raise InvalidJob("a job of this id is running already", field="job_id")
        reply = self._replies[job.job_id] = Reply(job, self._parts.renderer.vocabulary)
        return reply

    async def _compiled(self, grammar: Grammar | None) -> Compiled | None:
        """Raises `InvalidGrammar`."""
        if grammar is None:
            return None
        grammars = self._parts.runner.grammars
        if known := grammars.known(grammar):
            return known
        try:
            async with asyncio.timeout(COMPILE_S):
                return await self._loop.run_in_executor(self._compiling, grammars.compile, grammar)
        except TimeoutError:
            raise InvalidGrammar(f"it takes longer than {COMPILE_S:g} s to compile") from None

    def _let_go(self, reply: Reply) -> None:
        """Nobody reads it any more: unless it has ended, it is cancelled."""
        job_id = reply.job.job_id
        if self._replies.get(job_id) is reply:
            del self._replies[job_id]
            self._worker.post(lambda core, now: core.cancel(job_id, now))

    async def _ask(self, question: Callable[[Core, float], _Answer]) -> _Answer:
        self._raise_if_ended()
        return await self._put(question)

    async def _put(self, question: Callable[[Core, float], _Answer]) -> _Answer:
        """What `question` returns or refuses, asked between two steps."""
        answer: asyncio.Future[_Answer] = self._loop.create_future()

        def obey(core: Core, now: float) -> None:
            try:
                outcome = question(core, now)
            except Refused as error:
                self._loop.call_soon_threadsafe(_settle, answer, None, error)
            else:
                self._loop.call_soon_threadsafe(_settle, answer, outcome, None)

        self._questions.add(answer)
        self._worker.post(obey)
        try:
            return await answer
        finally:
            self._questions.discard(answer)

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def _drain(self) -> None:
        """Cancel what runs, let the worker tell of it, and wait until it is gone."""
        job_ids = list(self._replies)
        self._worker.post(lambda core, now: [core.cancel(job_id, now) for job_id in job_ids])
        self._worker.stop()
        await asyncio.to_thread(self._worker.join)

    # ------------------------------------------------------------ hearing from the worker

    def _publish(self, events: list[CoreEvent]) -> None:
        self._loop.call_soon_threadsafe(self._hear, events)

    def _lose(self, loss: "Future[None]") -> None:
        if error := loss.exception():
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        # A closed loop has nobody left who could be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._mourn, error)

    def _hear(self, events: list[CoreEvent]) -> None:
        for event in events:
            if reply := self._replies.get(event.job_id):
                reply.hear(event)
                if isinstance(event, Ended):
                    del self._replies[event.job_id]
                else:
                    self._stop_if_found(reply)
        self._wake_watchers()

    def _stop_if_found(self, reply: Reply) -> None:
        """Tell the core once; what it draws until it hears is ignored."""
        kept_ids = reply.take_stop()
        if kept_ids is not None:
            self._worker.post(lambda core, now: core.stop(reply.job.job_id, kept_ids, now))

    def _mourn(self, error: BaseException) -> None:
        if self._failed.is_set():
            return
        self._parts.followers.stop()
        log.error("the engine failed", exc_info=error)
        self._ended = EngineLost(f"the engine failed: {error!r}")
        self._failed.set()
        for reply in self._replies.values():
            reply.fail(self._ended)
        self._replies.clear()
        self._end(self._ended)

    def _end(self, error: EngineError) -> None:
        """Whoever still waits learns why nothing more comes."""
        for reply in self._replies.values():
            reply.stream.fail(error)
        for question in self._questions:
            _settle(question, None, error)
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _render(renderer: Renderer, request: RenderRequest) -> Rendered:
    """Raises `InvalidJob` for half a surrogate pair, which is a str and no text."""
    try:
        for message in request.messages:
            message.text.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(f"a message is no valid text: {error}", field="messages") from error
    return renderer.render(request)


def _changes(after: int, core: Core, _now: float) -> list[CacheEvent]:
    return core.cache_events(after)


def _settle(answer: "asyncio.Future[Any]", outcome: object, error: EngineError | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(outcome)
