"""A job in flight: its events on their way to a reader, and what a second engine must know of it.

Nothing waits for a slow reader (law 18): deltas that nobody took yet are read as one, so what is
kept is never more than the reply itself. Knows neither where events come from nor where they go;
belongs to one event loop.
"""

import asyncio
import secrets
from collections import deque
from typing import Self

import msgspec

from engine.api import Delta, Finished, FinishReason, Job, JobEvent, JobId, Seam, Started
from engine.errors import EngineError, InvalidJob, Refused
from engine.wire import failure_of

_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    # Of an empty nucleus nothing could be drawn.
    "top_p": (1e-9, 1.0),
    "top_k": (0, 1 << 31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "logprobs": (0, 20),
}
"""Least and most of what `Sampling` may say; also what a frame can hold."""


class JobStream:
    """Put events in, iterate them out; the iteration ends after `Finished` or raises the error."""

    def __init__(self) -> None:
        self._unread: deque[JobEvent] = deque()
        self._error: EngineError | None = None
        self._finished = False
        self._changed = asyncio.Event()

    def put(self, event: JobEvent) -> None:
        self._unread.append(event)
        self._changed.set()

    def fail(self, error: EngineError) -> None:
        """What is unread is still delivered, then `error` is raised."""
        self._error = error
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobEvent:
        if self._finished:
            raise StopAsyncIteration
        while not self._unread:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        event = self._take()
        self._finished = isinstance(event, Finished)
        return event

    def _take(self) -> JobEvent:
        event = self._unread.popleft()
        if not isinstance(event, Delta):
            return event
        deltas = [event]
        while self._unread and isinstance(following := self._unread[0], Delta):
            deltas.append(following)
            self._unread.popleft()
        return event if len(deltas) == 1 else _merged(deltas)


class Flight:
    """A job that one engine after another may serve; its reader sees one undisturbed stream.

    Raises `InvalidJob` as `prepared` does.
    """

    def __init__(self, job: Job) -> None:
        self.job = prepared(job)
        self.stream = JobStream()
        self.losses = 0
        """Engines that were lost while they had it, since its last token."""
        self.is_asked = False
        """Of an engine, which may be lost with it."""
        self._sent: list[int] = []
        self._started = False

    def take(self, event: JobEvent) -> None:
        match event:
            case Started() if self._started:
                return
            case Started():
                self._started = True
            case Delta(token_ids=token_ids):
                self._sent.extend(token_ids)
                self.losses = 0
            case Finished():
                pass
        self.stream.put(event)

    def resumed(self) -> Job:
        """The job for the next engine: what was sent is output already, and is not sent again."""
        output = (*self.job.resumed_output, *self._sent)
        return msgspec.structs.replace(self.job, resumed_output=output)

    def fail(self, error: EngineError) -> None:
        """Give the job up: it is finished with what was sent of it."""
        self.stream.put(failed(self.job.job_id, self.resumed().resumed_output, error))


class Flights(dict[int, Flight]):
    """All jobs in flight, by their requests, and which of them may be what kills engines.

    One that was in flight in `limit` lost engines, without a token between, is given up. The suspects,
    which would be next, are asked one at a time, so that the guilty one goes alone.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def lose(self) -> list[Flight]:
        """An engine was lost with what it was asked; those that are given up, which are gone."""
        for flight in self.values():
            flight.losses += flight.is_asked
            flight.is_asked = False
        given_up = [key for key, flight in self.items() if flight.losses >= self._limit]
        return [self.pop(key) for key in given_up]

    def is_suspect(self, flight: Flight) -> bool:
        return 0 < flight.losses == self._limit - 1

    def next_suspect(self) -> tuple[int, Flight] | None:
        """To be asked now: None while one is under way, which its next token clears."""
        suspects = [item for item in self.items() if self.is_suspect(item[1])]
        is_one_asked = any(flight.is_asked for _, flight in suspects)
        return suspects[0] if suspects and not is_one_asked else None


def prepared(job: Job) -> Job:
    """The same job with its random stream fixed, so that another engine would draw the same.

    Raises `InvalidJob` for sampling that no sampler can follow.
    """
    sampling = job.sampling
    for field, (least, most) in _BOUNDS.items():
        value = getattr(sampling, field)
        if value is not None and not least <= value <= most:
            message = f"{field} is {value}: give {least} to {most}"
            raise InvalidJob(message, field=f"sampling.{field}")
    if sampling.seed is not None:
        return job
    sampling = msgspec.structs.replace(sampling, seed=secrets.randbits(31))
    return msgspec.structs.replace(job, sampling=sampling)


def refused(job_id: JobId, error: Refused) -> Finished:
    """The only event of a job that was not admitted."""
    return Finished(
        job_id=job_id,
        reason=FinishReason.REFUSED,
        token_ids=(),
        text="",
        seam=Seam.CUT,
        refusal=failure_of(error),
    )


def failed(job_id: JobId, token_ids: tuple[int, ...], error: EngineError) -> Finished:
    """The last event of a job whose engine did not live to finish it."""
    return Finished(
        job_id=job_id,
        reason=FinishReason.FAILED,
        token_ids=token_ids,
        text="",
        seam=Seam.CUT,
        refusal=failure_of(error),
    )


def _merged(deltas: list[Delta]) -> Delta:
    return Delta(
        job_id=deltas[0].job_id,
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        text="".join(delta.text for delta in deltas),
        logprobs=tuple(logprobs for delta in deltas for logprobs in delta.logprobs),
    )
