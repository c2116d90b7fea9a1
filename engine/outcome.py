"""What becomes of jobs, as the deciding half tells it: their output in order, and their end.

Ids only: text, and the contract's events, are made from these on the other side of the thread.
"""

import msgspec

from engine.api import FinishReason, JobId, Receipt, Refusal, Seam, Started
from engine.step import DrawnToken


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """New output of a job, in order."""

    job_id: JobId
    drawn: tuple[DrawnToken, ...]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a job. `token_ids`: its whole kept output, resumed output included."""

    job_id: JobId
    reason: FinishReason
    token_ids: tuple[int, ...]
    seam: Seam
    receipt: Receipt | None = None
    refusal: Refusal | None = None


CoreEvent = Started | Emitted | Ended
