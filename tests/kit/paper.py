"""The paper model: a runner whose KV is written on paper, so that every wrong read is seen.

A KV entry is a function of the tokens up to its own. Here that function is a fingerprint: slot *i*
of a sequence holds the fingerprint of its tokens `[0, i]`, and the next token is a function of the
last fingerprint. The model knows its jobs' prompts and draws itself, so it can tell what each slot
must hold; it refuses to read one that holds anything else. Wrong sharing, early publication, a
stale block table, a lost copy, a write into a shared block: each fails at the very step.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from engine.api import Job, JobId
from engine.step import (
    Arrival,
    Arrivals,
    BlockId,
    Draw,
    DrawnToken,
    Drop,
    HandOver,
    Park,
    Plan,
    Restore,
    Run,
    RunResult,
    SegmentHead,
    Slots,
    Spill,
    StepResult,
    Wipe,
)
from engine.terms import Tier

VOCABULARY_TOKENS = 97
EOS_TOKEN_ID = 1
BLANK = 0
MODULUS = (1 << 61) - 1


class PaperFault(AssertionError):
    """A slot was read that does not hold what its sequence needs."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A launched step: the result is there at once."""

    step: int
    result: StepResult


def fingerprints(ids: Sequence[int]) -> Iterator[int]:
    """The fingerprint of `[0, i]` for each i: chained, never blank."""
    value = 1
    for token_id in ids:
        value = (value * 1_000_003 + token_id + 7) % MODULUS or 1
        yield value


def next_token(fingerprint: int, banned_ids: Sequence[int] = ()) -> int:
    """What the model says after these tokens, the first choice that is allowed."""
    choices = ((fingerprint + shift * 31) // 7 % VOCABULARY_TOKENS for shift in count())
    return next(choice for choice in choices if choice not in banned_ids)


def answer(ids: Sequence[int], tokens: int, banned_ids: Sequence[int] = ()) -> tuple[int, ...]:
    """The plain recomputation: `tokens` more after `ids`, without any cache or EOS."""
    known = list(ids)
    for _ in range(tokens):
        *_, last = fingerprints(known)
        known.append(next_token(last, banned_ids))
    return tuple(known[len(ids) :])


class PaperModel:
    """A `Runner` over `pool_blocks` blocks; `learn` it every job before its first step."""

    def __init__(self, pool_blocks: int, block_tokens: int) -> None:
        self.steps = 0
        self.computed_tokens = 0
        self.computed: dict[JobId, set[int]] = {}
        """The positions that each job had computed at least once."""
        self.wiped_blocks = 0
        self._block_tokens = block_tokens
        self._slots = [BLANK] * (pool_blocks * block_tokens)
        self._truth: dict[JobId, list[int]] = {}
        self.moving: list[Park | Spill | Restore] = []
        """Transfers that have not arrived; they read and write when they do, as late as may be."""
        self.segments: dict[tuple[Tier, str], list[int]] = {}
        self.heads: dict[str, SegmentHead] = {}
        """Of every segment that was ever written, to disk or to host memory."""

    def tell(self, arrivals: Arrivals) -> None:
        """Arrivals are made by hand, with `arrive`."""

    def close(self) -> None:
        """Nothing to do."""

    def learn(self, job: Job) -> None:
        """Remember what the job's ids really are."""
        self._truth[job.job_id] = [*job.token_ids, *job.resumed_output]

    def learn_of(self, job: Job) -> None:
        """The same for a job that may be known, and may have drawn tokens since."""
        if job.job_id not in self._truth:
            self.learn(job)

    def launch(self, plan: Plan) -> Step:
        """Wipes, copies, then all runs, like any runner."""
        self.steps += 1
        for wipe in plan.wipes:
            self._wipe(wipe)
        for copy in plan.copies:
            source, target = self._span(copy.source), self._span(copy.target)
            held = self._slots[source.start : source.start + copy.slots]
            self._slots[target.start : target.start + copy.slots] = held
        for transfer in plan.transfers:
            if isinstance(transfer, Drop):
                del self.segments[transfer.tier, transfer.name]
            elif isinstance(transfer, HandOver):
                self.heads[transfer.head.name] = transfer.head
            else:
                self.moving.append(transfer)
        written = [self._write(run) for run in plan.runs]
        runs = tuple(self._read(run, last) for run, last in zip(plan.runs, written, strict=True))
        return Step(step=plan.step, result=StepResult(step=plan.step, runs=runs))

    def collect(self, handle: Step) -> StepResult:
        return handle.result

    def arrive(self, at: int = 0, *, pieces: int | None = None) -> Arrival:
        """Carry out one transfer; with `pieces` only so many of its pieces are whole."""
        transfer = self.moving.pop(at)
        if isinstance(transfer, Restore):
            whole = len(transfer.pieces) if pieces is None else min(pieces, len(transfer.pieces))
            for piece in transfer.pieces[:whole]:
                held = self.segments[piece.tier, piece.name][piece.skip :]
                for slot, value in zip(self._places(piece.slots), held, strict=False):
                    self._slots[slot] = value
        else:
            whole = 1 if pieces is None else min(pieces, 1)
            if whole:
                self._put(transfer)
        return Arrival(transfer_id=transfer.transfer_id, pieces=whole, seconds=0.001)

    def _put(self, transfer: Park | Spill) -> None:
        name = transfer.head.name
        self.heads.setdefault(name, transfer.head)  # it may be handed over on its way
        if isinstance(transfer, Spill):
            self.segments[Tier.DISK, name] = self.segments[Tier.HOST, name]
        else:
            held = [self._slots[slot] for slot in self._places(transfer.slots)]
            self.segments[transfer.tier, name] = held

    def _places(self, slots: Slots) -> list[int]:
        """The pool's slots, in order."""
        return [self._slot(slots.blocks, slots.offset + at) for at in range(slots.tokens)]

    def is_blank(self, block: BlockId, behind: int = 0) -> bool:
        """Whether nothing at all is left in the block, from slot `behind` on."""
        return all(self._slots[slot] == BLANK for slot in self._span(block)[behind:])

    def _span(self, block: BlockId) -> range:
        return range(block * self._block_tokens, (block + 1) * self._block_tokens)

    def _wipe(self, wipe: Wipe) -> None:
        for slot in self._span(wipe.block)[wipe.behind :]:
            self._slots[slot] = BLANK
        self.wiped_blocks += not wipe.behind

    def _slot(self, table: Sequence[BlockId], position: int) -> int:
        block = table[position // self._block_tokens]
        return block * self._block_tokens + position % self._block_tokens

    def _write(self, run: Run) -> list[int]:
        """Write the run's slots; returns the fingerprints of the whole sequence."""
        truth = self._truth[run.job_id]
        end = run.start + len(run.token_ids)
        if list(run.token_ids) != truth[run.start : end]:
            raise PaperFault(f"{run.job_id}: was given ids that are not its own")
        prints = list(fingerprints(truth[:end]))
        for position in range(run.start, end):
            self._slots[self._slot(run.block_table, position)] = prints[position]
        self.computed_tokens += len(run.token_ids)
        self.computed.setdefault(run.job_id, set()).update(range(run.start, end))
        return prints

    def _read(self, run: Run, prints: list[int]) -> RunResult:
        """Attend to every slot of the sequence, after everybody has written."""
        for position, expected in enumerate(prints):
            if self._slots[self._slot(run.block_table, position)] != expected:
                raise PaperFault(f"{run.job_id}: slot {position} is not its own KV")
        drawn = () if run.draw is None else (self._draw(run, run.draw, prints[-1]),)
        return RunResult(job_id=run.job_id, drawn=drawn)

    def _draw(self, run: Run, draw: Draw, last: int) -> DrawnToken:
        truth = self._truth[run.job_id]
        if [*draw.prompt_ids, *draw.output_ids] != truth:
            raise PaperFault(f"{run.job_id}: draws after other ids than its own")
        token_id = next_token(last, draw.banned_ids)
        truth.append(token_id)
        return DrawnToken(token_id=token_id)
