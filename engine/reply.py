"""A running job's reply, from drawn tokens to events: text, stop strings, names of logprobs.

Belongs to the event loop's side: it hears what one step drew while the next is computed. A stop
string is therefore found when a token too many may be drawn already; that token is never sent, and
the core is told to cut it.
"""

from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from engine.api import (
    Delta,
    Finished,
    FinishReason,
    Job,
    Seam,
    Started,
    TokenLogprob,
    TokenLogprobs,
)
from engine.errors import EngineError
from engine.flight import JobStream, failed
from engine.model.text import TextStream, Vocabulary
from engine.outcome import CoreEvent, Emitted, Ended
from engine.step import DrawnToken


class Reply:
    """Hears a job's core events and puts contract events into `stream`."""

    def __init__(self, job: Job, vocabulary: Vocabulary) -> None:
        self.stream = JobStream()
        self.job = job
        self._vocabulary = vocabulary
        self._text = TextStream(vocabulary, job.limits.stop)
        self._output_ids = list(job.resumed_output)
        self._text.resume(job.resumed_output)
        self._stop_taken = False

    def take_stop(self) -> tuple[int, ...] | None:
        """The output to keep, once, after a stop string was found."""
        if self._stop_taken or not self._text.is_stopped:
            return None
        self._stop_taken = True
        return self._text.kept_ids

    def hear(self, event: CoreEvent) -> None:
        match event:
            case Started():
                self.stream.put(event)
            case Emitted() if self._text.is_stopped:
                pass  # drawn before the core heard of the stop string
            case Emitted(drawn=drawn):
                self._emit(drawn)
            case Ended():
                self.stream.put(self._finished(event))

    def fail(self, error: EngineError) -> None:
        """The engine failed: the job ends with what was drawn of it."""
        self.stream.put(failed(self.job.job_id, tuple(self._output_ids), error))

    def _emit(self, drawn: Sequence[DrawnToken]) -> None:
        text = self._text.feed(token.token_id for token in drawn)
        if self._text.is_stopped:
            drawn = drawn[: self._kept_of(drawn)]
        self._output_ids.extend(token.token_id for token in drawn)
        delta = Delta(
            job_id=self.job.job_id,
            token_ids=tuple(token.token_id for token in drawn),
            text=text,
            logprobs=tuple(self._named(token) for token in drawn if token.logprob is not None),
        )
        if delta.token_ids or delta.text:
            self.stream.put(delta)

    def _kept_of(self, drawn: Sequence[DrawnToken]) -> int:
        """How many of these tokens remain as they were drawn, before the stop string."""
        kept = self._text.kept_ids[len(self._output_ids) :]
        pairs = zip(kept, drawn, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1].token_id, pairs))

    def _finished(self, end: Ended) -> Finished:
        finished = Finished(
            job_id=end.job_id,
            reason=end.reason,
            token_ids=end.token_ids,
            text=self._text.flush(),
            seam=end.seam,
            receipt=end.receipt,
            refusal=end.refusal,
        )
        if not self._text.is_stopped:
            return finished
        # Also where the job had ended by itself before the core heard of the stop string.
        kept_ids = self._text.kept_ids
        receipt = end.receipt and replace(end.receipt, output_tokens=len(kept_ids))
        return replace(
            finished,
            reason=FinishReason.STOP,
            token_ids=kept_ids,
            seam=Seam.CUT,
            receipt=receipt,
        )

    def _named(self, token: DrawnToken) -> TokenLogprobs:
        assert token.logprob is not None
        return TokenLogprobs(
            chosen=self._logprob(token.token_id, token.logprob),
            top=tuple(self._logprob(token_id, logprob) for token_id, logprob in token.top),
        )

    def _logprob(self, token_id: int, logprob: float) -> TokenLogprob:
        text = self._vocabulary.token_text(token_id)
        return TokenLogprob(token_id=token_id, token=text, logprob=logprob)
