"""One running turn: the engine's events into the log, and its end into the ledger (laws 13 to 17).

    accepted ──> submitted ──> started ──> ended
        └────────────┴────────────┴── stop() is honoured in each

The turn belongs to the supervisor. Whoever watches reads the log; nothing here waits for a reader,
and no transaction is open while the engine is awaited. The end is stored before it is told.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from itertools import chain, repeat

import msgspec

from app.chat.eventlog import EventLog
from app.chat.intake import Prepared
from app.chat.ledger import Outcome, Progress
from app.chat.recall import following
from app.chat.rows import seconds
from app.db.types import utc_now
from app.errors import PageCode
from app.events import Problem, ResponseStatus, Usage
from engine.api import (
    Delta,
    Engine,
    Finished,
    FinishReason,
    JobEvent,
    Message,
    Receipt,
    Refusal,
    Role,
    Seam,
    Started,
)
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

STORE_AGAIN_S = (0.1, 1.0, 5.0)
"""Pauses between attempts to store an end; the last one is repeated until it is stored."""
INTERRUPTED = "interrupted"
STEERED = "steered"
"""Somebody said more while it was written; the successor goes on from what there is."""
MAX_OUTPUT_TOKENS = "max_output_tokens"
CONTEXT_FULL = "context_full"
"""It ends where the model can read no more, short of what it was allowed: no `continue` helps."""

End = tuple[ResponseStatus, str | None]
"""How an answer ends: its status, and why it is incomplete."""
_CANCELLED: End = (ResponseStatus.CANCELLED, None)
_INTERRUPTED: End = (ResponseStatus.INCOMPLETE, INTERRUPTED)
_STEERED: End = (ResponseStatus.INCOMPLETE, STEERED)

_SERVER_ERROR = Problem(
    code="server_error", message="The server failed before the answer was finished."
)
_REFUSAL_CODES: dict[str, PageCode] = {
    "prompt_too_long": "context_length_exceeded",
    "overloaded": "rate_limit_exceeded",
    "invalid_job": "invalid_prompt",
    "invalid_grammar": "invalid_json_schema",
}
_REFUSAL_FIELDS = {"overloaded": None, "invalid_grammar": "format"}


class Turn:
    """A turn from its acceptance to its end. `run` is called once."""

    def __init__(
        self, prepared: Prepared, log: EventLog, engine: Engine, writing: asyncio.Lock
    ) -> None:
        self.response = prepared.entry.response
        self.log = log
        self._job = prepared.job
        self._ledger = prepared.ledger
        self._hold = prepared.hold
        self._engine = engine
        self._writing = writing
        """Held over each transaction on replies, so that no checkpoint follows an end."""
        reply = prepared.entry.reply
        resumed = prepared.job.resumed_output
        self._glue = () if reply is None else reply.token_ids[: -len(resumed) or None]
        """Stands before the output in the reply's ids."""
        self._resumed_text = "" if reply is None else reply.text
        """What the answer had already, before it was taken up again."""
        self._path_digest = prepared.entry.path_digest
        self._token_ids = list(resumed)
        self._checkpointed_tokens = len(resumed)
        self._events: AsyncGenerator[JobEvent, None] | None = None
        """Set once the job is handed in."""
        self._first: asyncio.Future[JobEvent | None] | None = None
        self._started = False
        self._stop_as: End | None = None
        self._stopped_step: int | None = None
        self._closing = False
        self._cut_off = False
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    # ------------------------------------------------------------ from the outside

    async def cancel(self) -> int | None:
        """Stop on the user's wish and wait for the end; the engine step at which it stopped.

        None when it ended by itself first, or before the engine had it. Idempotent.
        """
        await self._stop(_CANCELLED)
        return self._stopped_step

    async def interrupt(self) -> None:
        """Stop since the server stops: the text is kept and the answer can be continued."""
        await self._stop(_INTERRUPTED)

    async def steer(self) -> None:
        """Stop since more was said: the text is kept, and what was said goes on from it."""
        await self._stop(_STEERED)

    async def wait(self) -> None:
        """Until the end is stored and logged."""
        await self._ended.wait()

    async def _stop(self, how: End) -> None:
        self._stop_as = self._stop_as or how
        if self._events is not None:
            await self._stop_job()
        await self._ended.wait()

    async def _stop_job(self) -> None:
        try:
            cancelled = await self._engine.cancel(self._job.job_id)
        except EngineError:
            return  # its stream says so too, and ends the turn
        if cancelled.step is not None:
            self._stopped_step = cancelled.step

    def take_progress(self) -> Progress | None:
        """What is new since the last checkpoint; None when nothing is, or it has ended."""
        tokens = len(self._token_ids)
        reply_id = self.response.reply_id
        if reply_id is None or tokens == self._checkpointed_tokens or self._closing:
            return None
        self._checkpointed_tokens = tokens
        return Progress(
            response_id=self.response.view.id,
            message_id=reply_id,
            text=self.log.text,
            token_ids=(*self._glue, *self._token_ids),
        )

    def submit(self) -> None:
        """Hand the job in before the turn is sure to be stored; what comes of it waits for `run`."""
        if self._events is None:
            self._events = self._engine.generate(self._job)
            self._first = asyncio.ensure_future(anext(self._events, None))

    async def abandon(self) -> None:
        """It was never stored, so it does not run, and nobody hears what was computed."""
        try:
            await self._leave()
        finally:
            self._ended.set()

    def cut_off(self) -> None:
        """Give up at once, telling nobody; the next start's sweep closes it."""
        self._cut_off = True
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------ its life

    async def run(self) -> None:
        """Generate, log, store. Raises nothing but its own cancellation."""
        self._task = asyncio.current_task()
        try:
            if not self._cut_off:
                await self._end(await self._answer())
                if self._hold is not None:
                    used = self.log.response.usage
                    tokens = 0 if used is None else used.input_tokens + used.output_tokens
                    await self._hold.take(tokens)
        finally:
            try:
                await self._leave()
            finally:
                self._ended.set()

    async def _leave(self) -> None:
        """Whatever the job still has to say is not heard; unless it has ended, it is cancelled."""
        if self._events is None or self._first is None:
            return
        if not self._first.done():
            self._first.cancel()
            await asyncio.wait([self._first])
        if not self._first.cancelled():
            self._first.exception()
        await self._events.aclose()

    async def _answer(self) -> Outcome:
        try:
            return await self._generate()
        except EngineError:
            LOG.warning("the engine failed in %s", self.response.view.id, exc_info=True)
        except Exception:  # one turn's fault must not end the others
            LOG.exception("turn %s failed", self.response.view.id)
        return self._failed(_SERVER_ERROR)

    async def _generate(self) -> Outcome:
        if self._stop_as is not None and self._events is None:
            return self._outcome(*self._stop_as, None)
        self.submit()
        outcome = None
        assert self._events is not None and self._first is not None
        event = await self._first
        while event is not None:
            if isinstance(event, Finished):
                outcome = self._finished(event)
            else:
                await self._take(event)
            event = await anext(self._events, None)
        return outcome or self._failed(_SERVER_ERROR)

    async def _take(self, event: JobEvent) -> None:
        if isinstance(event, Started):
            self._start()
            if self._stop_as is not None:
                # The wish may have overtaken the job on its way to the engine.
                await self._stop_job()
        elif isinstance(event, Delta):
            self._token_ids.extend(event.token_ids)
            self.log.write(event.text, event.logprobs)

    def _start(self) -> None:
        self._started = True
        self.log.progress()
        if self.response.reply_id is not None:
            self.log.open_item()
            self.log.write(self._resumed_text)

    def _finished(self, event: Finished) -> Outcome:
        if event.text and not self._started:
            self._start()
        if self.response.reply_id is not None:
            self.log.write(event.text)
        if event.reason in (FinishReason.REFUSED, FinishReason.FAILED):
            return self._failed(self._problem(event.refusal), event)
        return self._outcome(*self._ending(event), event)

    def _ending(self, event: Finished) -> End:
        """The status, and why it is incomplete. A warm-up is complete without a token."""
        if event.reason is FinishReason.CANCELLED:
            # Without a wish it was the engine that stopped: nobody cancelled.
            return self._stop_as or _INTERRUPTED
        if event.reason is FinishReason.LENGTH and self.response.reply_id is not None:
            most = self._job.limits.max_output_tokens
            is_all = most is not None and len(event.token_ids) >= most
            return ResponseStatus.INCOMPLETE, MAX_OUTPUT_TOKENS if is_all else CONTEXT_FULL
        return ResponseStatus.COMPLETED, None

    def _problem(self, refusal: Refusal | None) -> Problem:
        problem = _problem(refusal)
        if problem.field == "format" and self.response.asked.tools:
            return msgspec.structs.replace(problem, field="tools")
        return problem

    def _failed(self, problem: Problem, event: Finished | None = None) -> Outcome:
        outcome = self._outcome(ResponseStatus.FAILED, None, event)
        view = msgspec.structs.replace(outcome.view, error=problem)
        return msgspec.structs.replace(outcome, view=view)

    def _outcome(
        self, status: ResponseStatus, incomplete_reason: str | None, event: Finished | None
    ) -> Outcome:
        """The end with the ids of `event`; without one, with those that have come so far."""
        receipt = None if event is None else event.receipt
        if receipt is not None:
            written = receipt.output_tokens - len(self._job.resumed_output)
            receipt = msgspec.structs.replace(receipt, output_tokens=written)
        was_heard = event is not None and event.reason is not FinishReason.REFUSED
        output = event.token_ids if event is not None and was_heard else self._token_ids
        text = self.log.text if self._started else self._resumed_text
        return Outcome(
            input_ids=self.response.asked.input_ids,
            view=msgspec.structs.replace(
                self.response.view,
                status=status,
                completed_at=seconds(utc_now()),
                incomplete_reason=incomplete_reason,
                usage=usage_of(receipt),
                receipt=receipt,
            ),
            user_id=self.response.user_id,
            reply_id=self.response.reply_id,
            text=text,
            token_ids=(*self._glue, *output),
            seam=Seam.CUT if event is None else event.seam,
            path_digest=self._whole_digest(status, text),
        )

    def _whole_digest(self, status: ResponseStatus, text: str) -> bytes | None:
        """Of a failure nothing was told that a client could send again."""
        if status is ResponseStatus.FAILED or self.response.reply_id is None:
            return None
        return following(self._path_digest, Message(role=Role.ASSISTANT, text=text))

    async def _end(self, outcome: Outcome) -> None:
        """Close the item, store the end, and only then tell it."""
        self._closing = True
        if self._started and self.response.reply_id is not None:
            self.log.close_item()
        await self._store(outcome)
        self.log.end(outcome.view)

    async def _store(self, outcome: Outcome) -> None:
        for pause_s in chain(STORE_AGAIN_S, repeat(STORE_AGAIN_S[-1])):
            try:
                async with self._writing:
                    await self._ledger.finish(outcome)
            except Exception:  # a locked or full disk: what is not stored is not told
                LOG.exception("the end of %s was not stored yet", outcome.view.id)
                await asyncio.sleep(pause_s)
            else:
                return


def usage_of(receipt: Receipt | None) -> Usage | None:
    """What clients are told of it."""
    if receipt is None:
        return None
    return Usage(
        input_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        output_tokens=receipt.output_tokens,
    )


def _problem(refusal: Refusal | None) -> Problem:
    """The engine's refusal in the words of responses, its numbers in the message."""
    if refusal is None or refusal.code not in _REFUSAL_CODES:
        return _SERVER_ERROR
    message = refusal.message
    if refusal.needed_tokens is not None and refusal.limit_tokens is not None:
        message = (
            f"The prompt and its answer need {refusal.needed_tokens} tokens;"
            f" this model has room for {refusal.limit_tokens}."
        )
    return Problem(
        code=_REFUSAL_CODES[refusal.code],
        message=message,
        field=_REFUSAL_FIELDS.get(refusal.code, "input"),
        retry_after_s=refusal.retry_after_s,
    )
