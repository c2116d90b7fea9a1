"""The order that the deciding half hands to the half that moves bytes: plain data, no torch.

One step is *plan, run, commit*. `core` makes a `Plan`, a `Runner` carries it out, `core` commits
the `StepResult`. Order inside a step: wipes, copies, the forward pass over all runs at once,
sampling. A runner never decides; it may be a step late (`launch` and `collect` are
apart so that the next plan can be made meanwhile).
"""

from collections.abc import Sequence
from typing import NewType, Protocol

import msgspec

from engine.api import JobId, Sampling

BlockId = NewType("BlockId", int)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Copy the first `slots` token slots of block `source` into block `target`, all layers.

    This is copy-on-write of a partly matching block; `target` belongs to the new sequence alone.
    """

    source: BlockId
    target: BlockId
    slots: int


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """Sample one token after a run's last row. The id lists are views: read, never kept.

    Penalties look at `prompt_ids` and `output_ids`; the random stream is keyed by the seed and
    `len(output_ids)`. Tokens in `banned_ids` cannot be drawn.
    """

    sampling: Sampling
    seed: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    banned_ids: tuple[int, ...] = ()


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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    copies: tuple[Copy, ...]
    runs: tuple[Run, ...]
    wipes: tuple[BlockId, ...] = ()
    """Blocks that were forgotten or freed: zeroed (or poisoned, in test mode) before the copies."""


class DrawnToken(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled token; logprobs are natural logs, `top` holds (token id, logprob), best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    job_id: JobId
    drawn: tuple[DrawnToken, ...]
    """Empty without a draw; several where a runner speculates."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    runs: tuple[RunResult, ...]
    """In the order of the plan."""


class Handle(Protocol):
    """A launched step."""

    @property
    def step(self) -> int: ...


class Runner(Protocol):
    """Carries plans out. Plans are launched in order; each is collected exactly once."""

    def launch(self, plan: Plan) -> Handle: ...

    def collect(self, handle: Handle) -> StepResult: ...
