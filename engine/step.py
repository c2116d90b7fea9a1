"""The order that the deciding half hands to the half that moves bytes: plain data, no torch.

One step is *plan, run, commit*. `core` makes a `Plan`, a `Runner` carries it out, `core` commits
the `StepResult`. Order inside a step: wipes, copies, the forward pass over all runs at once,
sampling. A runner never decides; it may be a step late (`launch` and `collect` are
apart so that the next plan can be made meanwhile).
"""

from collections.abc import Callable, Sequence
from typing import NewType, Protocol

import msgspec

from engine.api import Grammar, JobId, OwnerId, Sampling, Scope
from engine.terms import Tier

BlockId = NewType("BlockId", int)
TransferId = NewType("TransferId", int)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the first `slots` token slots of block `source` into block `target`, all layers.

    This is copy-on-write of a partly matching block; `target` belongs to the new sequence alone.
    """

    source: BlockId
    target: BlockId
    slots: int


class Wipe(msgspec.Struct, frozen=True, kw_only=True):
    """Zero the token slots of `block` from slot `behind` on (poison them in test mode), all layers.

    What was in them is nobody's any more.
    """

    block: BlockId
    behind: int = 0


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """Sample one token after a run's last row.

    Penalties look at `prompt_ids` and `output_ids`; the random stream is keyed by the seed and
    `len(output_ids)`. Tokens in `banned_ids` cannot be drawn. With a `grammar` only what it allows
    after `output_ids` can; where that is banned tokens alone, these.
    """

    sampling: Sampling
    seed: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    banned_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Compute `token_ids` at positions `[start, start + len(token_ids))` of one sequence.

    Slot of position p: block `block_table[p // block_tokens]`, offset `p % block_tokens`. KV of
    `[0, start)` is already there. `draw` is None for a chunk that does not end the prompt.
    """

    job_id: JobId
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[BlockId]
    draw: Draw | None


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` slots of the pool, from slot `offset` of the first block on, block after block."""

    blocks: tuple[BlockId, ...]
    offset: int
    tokens: int


def slots_at(table: Sequence[BlockId], block_tokens: int, start: int, tokens: int) -> Slots:
    """Where positions `[start, start + tokens)` of a block table lie."""
    blocks = table[start // block_tokens : -(-(start + tokens) // block_tokens)]
    return Slots(blocks=tuple(blocks), offset=start % block_tokens, tokens=tokens)


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """A run of one path's tokens that a lower tier keeps, and what it continues.

    `name` is never given twice. The KV is that of `token_ids` behind the tokens of `parent` and
    those before it; "" continues nothing. Whose lease had it written: `owner_id`, `session_id`.
    """

    name: str
    parent: str
    scope: Scope
    start: int
    token_ids: tuple[int, ...]
    owner_id: OwnerId
    session_id: str
    durable: bool = True
    """False: it may lie in memory only."""


class Park(msgspec.Struct, frozen=True, kw_only=True, tag="park"):
    """Copy the KV in `slots` into a new segment of `tier`. The slots do not change meanwhile."""

    transfer_id: TransferId
    tier: Tier
    head: SegmentHead
    slots: Slots


class Spill(msgspec.Struct, frozen=True, kw_only=True, tag="spill"):
    """Copy a segment from host memory to disk."""

    transfer_id: TransferId
    head: SegmentHead


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `[skip, skip + slots.tokens)` of a segment, into `slots`."""

    tier: Tier
    name: str
    skip: int
    slots: Slots


class Restore(msgspec.Struct, frozen=True, kw_only=True, tag="restore"):
    """Copy segments' KV into slots that nobody reads before it arrives; pieces are in order."""

    transfer_id: TransferId
    pieces: tuple[Piece, ...]


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag="drop"):
    """Let a segment's bytes go, after every transfer that was ordered before."""

    tier: Tier
    name: str


class HandOver(msgspec.Struct, frozen=True, kw_only=True, tag="hand_over"):
    """A segment is another lease's from now on: its file, if it has one, is to say so.

    After every transfer that was ordered before. A file that cannot be written again is deleted.
    """

    head: SegmentHead


Transfer = Park | Spill | Restore | Drop | HandOver


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A park, spill or restore is over. `pieces` of a restore are whole, the rest are damaged.

    For a park or a spill `pieces` is 1 when the segment is whole and 0 when it could not be
    written. `seconds` is what the transfer took.
    """

    transfer_id: TransferId
    pieces: int
    seconds: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    copies: tuple[Copy, ...]
    runs: tuple[Run, ...]
    wipes: tuple[Wipe, ...] = ()
    """Carried out before the copies."""
    transfers: tuple[Transfer, ...] = ()
    """Started with this step, in order; they end when they end, and no step waits for them."""


class DrawnToken(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled token; logprobs are natural logs, `top` holds (token id, logprob), best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    job_id: JobId
    drawn: tuple[DrawnToken, ...]
    """Empty without a draw; several where a runner speculates."""
    fault: str | None = None
    """Why nothing could be drawn by the grammar, in words."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    runs: tuple[RunResult, ...]
    """In the order of the plan."""


Arrivals = Callable[[Arrival], None]
"""Is told of each transfer that is over, on any thread."""


class Handle(Protocol):
    """A launched step."""

    @property
    def step(self) -> int: ...


class Runner(Protocol):
    """Carries plans out. Plans are launched in order; each is collected exactly once.

    Transfers arrive later and by another road (`Arrivals`), each park, spill and restore once.
    """

    def tell(self, arrivals: Arrivals) -> None:
        """Who is told of transfers that are over; called once, before the first plan."""
        ...

    def launch(self, plan: Plan) -> Handle: ...

    def collect(self, handle: Handle) -> StepResult: ...

    def close(self) -> None:
        """Finish the transfers that were started."""
        ...
