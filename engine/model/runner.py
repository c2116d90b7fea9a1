"""Carries plans out on the real model: wipes, copies, one forward pass, sampling.

The rows of all runs are computed as one packed sequence, by the native kernels or by the stock
modules, so every matrix product is batched over prefill and decode alike; only rows that draw reach
the head. It refuses to decide anything. On a CPU it computes in `launch`; a GPU is told there what to
compute, and `collect` waits for the tokens that are drawn, the only thing that anybody waits for.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path

import msgspec
import numpy as np
import torch

from engine.api import JobId
from engine.config import EngineConfig
from engine.errors import Corrupt, InvalidGrammar, Misconfigured
from engine.model import room
from engine.model.attention import attention_over
from engine.model.carrier import Carrier
from engine.model.cascade import Cascade
from engine.model.device_sample import Drawing
from engine.model.grammar import Allowed, Followers, Grammars
from engine.model.hardware import free_bytes
from engine.model.load import LoadedModel
from engine.model.memory import sent
from engine.model.native.passes import Passes
from engine.model.paged import PagedStep
from engine.model.pool import FP8, POISON, POISONED_KEYS, ZERO, Pool
from engine.model.ranks import Ranks
from engine.model.reading import Attention
from engine.model.replay import Replay, replay_of
from engine.model.sample import NO_MASKS, draw_tokens
from engine.model.segments import SegmentFiles, destroy
from engine.step import (
    Arrivals,
    BlockId,
    DrawnToken,
    Handle,
    Plan,
    Run,
    RunResult,
    SegmentHead,
    StepResult,
    Wipe,
)

Masks = Mapping[JobId, Allowed | InvalidGrammar]
"""What jobs with a grammar may draw in a step, or why they can draw nothing."""

_PROBE = JobId("probe")
_BLOCK_TOKENS = 16
_COPIED_LAYERS = 2
"""Of what torch reads of pages: sequences that are read as one are padded to at most twice as long."""

# Relative error of a probe's logits: rounding leaves a tenth of it, another attention ten times it.
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, FP8: 0.2}


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A handle: what was asked for, and what each of its passes draws."""

    plan: Plan
    masks: Masks
    passes: list[Drawing | list[DrawnToken]]

    @property
    def step(self) -> int:
        return self.plan.step


class ModelRunner:
    """A `Runner` over one loaded model. Not thread-safe: one thread launches and collects."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._loaded = loaded
        self._config = config
        self._checks = config.checks
        self._deterministic = config.deterministic
        self.grammars = Grammars(loaded)
        self._followers = Followers(self.grammars, loaded.vocabulary_tokens)
        self._passes: Passes | None = None
        self._attention: Attention | None = None
        self._replay: Replay | None = None
        blocks = self._fitting_blocks()
        self.pool, self.attention = self._pool_of(blocks, poison=config.poison)
        self._files = _segment_files(loaded, config)
        self.disk_bytes = config.disk_bytes or self._default_disk_bytes()
        self._carrier: Carrier | None = None

    def _fitting_blocks(self) -> int:
        """How many blocks the pool has on every rank. Raises `Misconfigured` where they do not fit."""
        loaded, config = self._loaded, self._config
        if loaded.device.type == "cuda":
            space = room.measured(loaded.device, self._take_largest_step)
        else:
            space = room.room_of_cpu(free_bytes(), loaded.weights_bytes)
        layout = room.Layout(
            block_bytes=loaded.kv.token_bytes * self._block_tokens,
            block_tokens=self._block_tokens,
            layers=loaded.kv.layers,
            copied_layers=self._copied_layers,
            usual_tokens=min(config.step_tokens, loaded.context_tokens),
            spare_tokens=self._spare_blocks * self._block_tokens,
        )
        asked = config.kv_memory_bytes
        blocks = loaded.ranks.least(room.blocks_in(space, layout, asked))
        room.check_fits(space, layout, asked, blocks)
        return blocks

    @property
    def _block_tokens(self) -> int:
        least = _BLOCK_TOKENS if self._loaded.flash is None else self._loaded.flash.block_tokens
        return self._config.block_tokens or max(_BLOCK_TOKENS, least)

    @property
    def _copied_layers(self) -> int:
        """How much of the pool lies copied beside it at most, as a number of its layers."""
        loaded = self._loaded
        if loaded.device.type == "cpu" or loaded.flash is not None:
            return 0
        is_widened = loaded.kv_dtype != loaded.dtype
        wider = loaded.dtype.itemsize // loaded.kv_dtype.itemsize if is_widened else 0
        return _COPIED_LAYERS * (1 + wider)

    def _take_largest_step(self) -> None:
        """Over a pool of one block, which is let go."""
        self.pool, _ = self._pool_of(1, poison=False)
        rows = self._config.step_tokens
        plan = room.largest_step(
            rows=rows,
            draws=min(self._config.max_running, rows),
            context_tokens=self._loaded.context_tokens,
            block_tokens=self._block_tokens,
        )
        self.launch(plan)

    def _pool_of(self, blocks: int, *, poison: bool) -> tuple[Pool, str]:
        """A pool, and who computes over it from now on: the native kernels or a backend, by name."""
        loaded = self._loaded
        empty = POISON if loaded.flash is None else POISONED_KEYS
        pool = Pool(
            loaded.kv,
            blocks=blocks,
            block_tokens=self._block_tokens,
            dtype=loaded.kv_dtype,
            device=loaded.device,
            empty=empty if poison else ZERO,
        )
        if loaded.decoder is not None:
            self._passes = loaded.decoder.over(pool, torch.get_num_threads())
            return pool, "native kernels (whole step)"
        self._attention = attention_over(
            pool,
            query_heads=loaded.query_heads,
            flash=loaded.flash,
            library=loaded.library,
            uses_views=not self._deterministic,
        )
        return pool, self._attention.name

    @property
    def blocks(self) -> int:
        """Of the pool, for sequences."""
        return self.pool.blocks - self._spare_blocks

    @property
    def _spare_blocks(self) -> int:
        """One where decode steps may be recorded: rows of padding use it."""
        loaded = self._loaded
        return int(loaded.flash is not None and loaded.ranks.size == 1 and not self._deterministic)

    def tell(self, arrivals: Arrivals) -> None:
        """Who hears of transfers that are over, on the thread that carried them. Called once."""
        self._carrier = Carrier(self.pool, self._files, arrivals)
        self._carrier.clear()

    def parked(self) -> list[SegmentHead]:
        """What an earlier life left on disk, longest unused first."""
        heads = [] if self._files is None else self._files.heads()
        if self._carrier is not None:
            self._carrier.clear()
        return heads

    @property
    def refused(self) -> int:
        """How many files of parked KV were not whole, or of other weights, and are deleted."""
        return 0 if self._files is None else self._files.refused

    def _default_disk_bytes(self) -> int:
        pool_tokens = self.blocks * self.pool.block_tokens
        pool_bytes = pool_tokens * self._loaded.kv.token_bytes * self._loaded.ranks.size
        return 0 if self._files is None else self._files.default_bytes(pool_bytes)

    def close(self) -> None:
        """Finish the transfers that were started."""
        if self._carrier is not None:
            self._carrier.close()

    def launch(self, plan: Plan) -> LaunchedStep:
        """Carry `plan` out; raises `Corrupt` where checks find a logit that is no number."""
        with contextlib.nullcontext() if self._passes is None else _one_thread():
            self._move(plan)
            masks = self._followers.masks(plan.runs)
            passes = [self._compute(runs, masks) for runs in self._passes_of(plan.runs)]
        return LaunchedStep(plan, masks, passes)

    def follow(self, plan: Plan) -> None:
        """Carry a plan out beside the rank that draws its tokens."""
        self._move(plan)
        for runs in self._passes_of(plan.runs):
            self._forward(runs, _ends(runs))

    def collect(self, handle: Handle) -> StepResult:
        assert isinstance(handle, LaunchedStep)
        passes = (one.tokens() if isinstance(one, Drawing) else one for one in handle.passes)
        tokens = chain.from_iterable(passes)
        results = tuple(_result(run, tokens, handle.masks) for run in handle.plan.runs)
        return StepResult(step=handle.step, runs=results)

    def warm_up(self) -> None:
        """Compare a short prompt with the model's own attention, and touch what starts lazily.

        Uses block 0 and wipes it, so it comes before the first plan. Raises `Misconfigured` where
        the model needs an attention that the paged cache does not compute.
        """
        tokens = min(self.pool.block_tokens, self._loaded.context_tokens)
        probe = [(i * 7919) % self._loaded.vocabulary_tokens for i in range(tokens)]
        run = Run(job_id=_PROBE, token_ids=probe, start=0, block_table=[BlockId(0)], draw=None)
        ours = self._forward([run], [tokens - 1])[0]
        # A few rows: several threads would wait for each other longer than they compute.
        with _one_thread():
            theirs = self._loaded.reference_logits(probe)
        error = float((ours - theirs).norm() / theirs.norm())
        if not error < _PROBE_TOLERANCE[self._loaded.kv_dtype]:
            raise Misconfigured(
                f"model {self._loaded.name!r} differs by {error:.1e} from its own attention when it "
                "runs over the paged cache: choose a model with plain causal attention"
            )
        last = msgspec.structs.replace(run, token_ids=probe[-1:], start=tokens - 1)
        self._record(last, ours)
        self.pool.wipe([Wipe(block=BlockId(0))])

    def _record(self, probe: Run, expected: torch.Tensor) -> None:
        """Decode steps, if they can be; this is what has to come of one row behind block 0."""
        if self._spare_blocks:
            self._replay = replay_of(
                self._loaded,
                self.pool,
                most_rows=self._config.max_running,
                probe=probe,
                expected=expected,
                error=_PROBE_TOLERANCE[self._loaded.dtype],
            )

    def _move(self, plan: Plan) -> None:
        self.pool.wipe(plan.wipes)
        self.pool.copy(plan.copies)
        if plan.transfers:
            assert self._carrier is not None
            self._carrier.carry(plan.transfers)

    def _passes_of(self, runs: Sequence[Run]) -> Sequence[Sequence[Run]]:
        """Those that are computed together; no runs, no pass."""
        if self._deterministic and self._passes is None:
            # Alone in its pass a run's sums do not depend on who else is there.
            return [[run] for run in runs]
        return [runs] if runs else []

    def _compute(self, runs: Sequence[Run], masks: Masks) -> Drawing | list[DrawnToken]:
        """One token for each run that draws."""
        logits = self._forward(runs, _ends(runs))
        if self._checks and bool(logits.isnan().any()):
            raise Corrupt("a logit is not a number: a slot was read before it was written")
        draws = [run.draw for run in runs if run.draw is not None]
        draw = draw_tokens if logits.device.type == "cpu" else Drawing
        return draw(logits, draws, _rows(runs, masks) if masks else NO_MASKS)

    @torch.inference_mode()
    def _forward(self, runs: Sequence[Run], rows: Sequence[int]) -> torch.Tensor:
        """Write the KV of all runs; logits [len(rows), vocabulary] after the given packed rows."""
        with self.pool.in_use():
            return self._logits(runs, rows)

    def _logits(self, runs: Sequence[Run], rows: Sequence[int]) -> torch.Tensor:
        if self._passes is not None:
            return self._passes.logits(runs, rows)
        if self._replay is not None and self._replay.takes(runs) and not self._shares(runs):
            return self._replay.logits(runs)
        return self._launched(runs, rows)

    def _shares(self, runs: Sequence[Run]) -> bool:
        """Whether something that runs begin with is read once for them, which nobody records."""
        return isinstance(self._attention, Cascade) and bool(self._attention.groups_of(runs))

    def _launched(self, runs: Sequence[Run], rows: Sequence[int]) -> torch.Tensor:
        """Part by part."""
        assert self._attention is not None
        device = self._loaded.device
        ids = np.array(list(chain.from_iterable(run.token_ids for run in runs)), dtype=np.int64)
        positions = np.concatenate(
            [np.arange(run.start, run.start + len(run.token_ids)) for run in runs]
        )
        output = self._loaded.model(
            input_ids=sent(ids, device)[None],
            position_ids=sent(positions, device)[None],
            use_cache=False,
            logits_to_keep=sent(np.array(rows, dtype=np.int64), device),
            paged=PagedStep(self.pool, runs, self._attention),
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def _ends(runs: Sequence[Run]) -> list[int]:
    """The packed rows that draw."""
    ends = list(accumulate(len(run.token_ids) for run in runs))
    return [end - 1 for run, end in zip(runs, ends, strict=True) if run.draw is not None]


def _rows(runs: Sequence[Run], masks: Masks) -> dict[int, Allowed]:
    """Masks by the rows that draw."""
    drawing = [run.job_id for run in runs if run.draw is not None]
    found = ((row, masks.get(job_id)) for row, job_id in enumerate(drawing))
    return {row: mask for row, mask in found if isinstance(mask, np.ndarray)}


def _result(run: Run, tokens: Iterator[DrawnToken], masks: Masks) -> RunResult:
    """What a grammar that leads nowhere would have drawn without it counts for nothing."""
    drawn = () if run.draw is None else (next(tokens),)
    mask = masks.get(run.job_id)
    if isinstance(mask, InvalidGrammar):
        return RunResult(job_id=run.job_id, drawn=(), fault=mask.message)
    return RunResult(job_id=run.job_id, drawn=drawn)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Inside, torch computes alone: its threads spin for milliseconds on the kernels' cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _segment_files(loaded: LoadedModel, config: EngineConfig) -> SegmentFiles | None:
    if config.disk_bytes == 0:
        return None
    # KV of the deterministic mode has its own sums, which no other pass may stand in for.
    mode = "deterministic" if config.deterministic else "batched"
    if config.deterministic and loaded.library is not None:
        mode = f"deterministic-{loaded.library.digest}"
    if loaded.kv_dtype != loaded.dtype:
        mode = f"{mode}/{loaded.kv_dtype}"
    ranks = loaded.ranks
    if ranks.size > 1:
        mode = f"{mode}/rank {ranks.rank} of {ranks.size}"
    fingerprint = f"{loaded.model_fingerprint}/{mode}"
    return SegmentFiles(_folders(config.data_dir, ranks)[ranks.rank], fingerprint)


def _folders(data_dir: Path, ranks: Ranks) -> list[Path]:
    """Where each rank keeps its part of every segment; what more ranks have left is let go."""
    for folder in data_dir.glob("parked-rank-*"):
        if int(folder.name.rsplit("-", 1)[1]) >= ranks.size:
            with contextlib.suppress(OSError):  # the next start tries again
                for file in folder.iterdir():
                    destroy(file)
                folder.rmdir()
    others = [data_dir / f"parked-rank-{rank}" for rank in range(1, ranks.size)]
    return [data_dir / "parked", *others]
