"""Decode steps that a card is handed at once: what one launches is recorded and replayed.

Owns the numbers of rows that are recorded (as CUDA graphs), the padding up to them, and the tensors
that a recording reads: each step is written into the same ones. Rows that pad read and write the
pool's last block, which is no sequence's, and nobody looks at their logits. A recording holds for as
long as the weights and the pool lie where they lay, which is as long as their runner lives.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.flash import Asked, FlashKernel, Tables
from engine.model.load import LoadedModel
from engine.model.memory import sent
from engine.model.pool import Pool
from engine.model.source import log
from engine.step import Run

Compute = Callable[[], torch.Tensor]
"""Reads tensors that stay where they are, and gives its result in one."""
Record = Callable[[Compute], Compute]
"""From a computation to what repeats it over what those tensors hold by then."""

_LARGEST_DOUBLED = 16
"""Up to here sizes double; from here on they are multiples of it: at most 15 rows are wasted."""


def sizes_up_to(most: int) -> tuple[int, ...]:
    """The numbers of rows that are recorded, ascending; the last is at least `most`."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + min(sizes[-1], _LARGEST_DOUBLED))
    return tuple(sizes)


def packed(
    runs: Sequence[Run], size: int, block_tokens: int, scratch: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Runs of one row as what a recording of `size` rows reads.

    Returns:
        Words [5, size + 1], int32: ids, positions, slots, tokens, and where each row's tokens begin;
        and block tables [size, blocks of the longest]. Rows that pad are the first token of a
        sequence in block `scratch`.
    """
    starts = (run.start for run in runs)
    most = max(starts, default=0) // block_tokens + 1
    words = np.zeros((5, size + 1), dtype=np.int32)
    table = np.full((size, most), scratch, dtype=np.int32)
    words[2] = scratch * block_tokens
    words[3] = 1
    for at, run in enumerate(runs):
        last = run.start // block_tokens
        table[at, : last + 1] = run.block_table[: last + 1]
        slot = run.block_table[last] * block_tokens + run.start % block_tokens
        words[:4, at] = run.token_ids[0], run.start, slot, run.start + 1
    words[4, 1:] = np.cumsum(words[3, :-1])
    return words, table


class _Inputs:
    """The tensors that a recording of `rows` rows reads; the block tables are all recordings'."""

    def __init__(self, rows: int, table: torch.Tensor) -> None:
        self.words = torch.zeros((5, rows + 1), dtype=torch.int32, device=table.device)
        self.row_starts = torch.arange(rows + 1, dtype=torch.int32, device=table.device)
        self.table = table[:rows]
        self.rows = rows


class _Step:
    """What a layer of a recorded step does: writes its rows, then attends, all by `_Inputs`."""

    def __init__(self, pool: Pool, kernel: FlashKernel, inputs: _Inputs, most_tokens: int) -> None:
        self._pool, self._kernel = pool, kernel
        self._slots = inputs.words[2, :-1].long()
        self._tables = Tables(
            row_starts=inputs.row_starts,
            token_starts=inputs.words[4],
            tokens=inputs.words[3, :-1],
            blocks=inputs.table,
            most_rows=1,
            most_tokens=most_tokens,
        )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scaling: float,
        window: int | None = None,
    ) -> torch.Tensor:
        """As `PagedStep.attend`."""
        self._pool.put(layer, self._slots, keys, values)
        pages = self._pool.key_blocks(layer), self._pool.value_blocks(layer)
        return self._kernel.attend(Asked(query, *pages, self._tables, scaling, window, True))


class Replay:
    """Decode steps of one model over one pool, whose last block is no sequence's."""

    def __init__(
        self,
        model: Any,
        pool: Pool,
        kernel: FlashKernel,
        *,
        most_rows: int,
        most_tokens: int,
    ) -> None:
        """Raises `RuntimeError` where a step cannot be recorded."""
        self._model, self._pool, self._kernel = model, pool, kernel
        self.sizes = sizes_up_to(most_rows)
        self._most_tokens = min(most_tokens, pool.blocks * pool.block_tokens)
        shape = self.sizes[-1], -(-self._most_tokens // pool.block_tokens)
        self._table = torch.zeros(shape, dtype=torch.int32, device=pool.device)
        self._inputs = {size: _Inputs(size, self._table) for size in self.sizes}
        self._steps: dict[int, Compute] = {}
        with recording(pool.device) as record:
            # The largest first: what it takes while it computes serves the others as well.
            for size in reversed(self.sizes):
                self._write([], size)
                self._steps[size] = record(functools.partial(self._computed, size))

    def takes(self, runs: Sequence[Run]) -> bool:
        """Whether a step of these runs is one that was recorded."""
        return len(runs) <= self.sizes[-1] and all(
            len(run.token_ids) == 1 and run.draw is not None for run in runs
        )

    def logits(self, runs: Sequence[Run]) -> torch.Tensor:
        """[runs, vocabulary]; they are there until the next step."""
        size = next(size for size in self.sizes if size >= len(runs))
        self._write(runs, size)
        return self._steps[size]()[: len(runs)]

    def _write(self, runs: Sequence[Run], size: int) -> None:
        """Behind what was replayed before: all is one stream's."""
        words, table = packed(runs, size, self._pool.block_tokens, self._pool.blocks - 1)
        self._inputs[size].words.copy_(sent(words, self._pool.device))
        # What lies behind these columns is older, and behind what any row sees.
        self._table[:size, : table.shape[1]] = sent(table, self._pool.device)

    def _computed(self, size: int) -> torch.Tensor:
        inputs = self._inputs[size]
        ids, positions = inputs.words[:2, :-1].long()
        step = _Step(self._pool, self._kernel, inputs, self._most_tokens)
        output = self._model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, paged=step
        )
        logits: torch.Tensor = output.logits[0]
        return logits


@torch.inference_mode()
def replay_of(
    loaded: LoadedModel,
    pool: Pool,
    *,
    most_rows: int,
    probe: Run,
    expected: torch.Tensor,
    error: float,
) -> Replay | None:
    """Decode steps over flash-attn as recorded, where each of them has `expected` [vocabulary] come of `probe`.

    Within a relative `error`. `probe` is a row of its own behind KV that is there. Where nothing can
    be recorded, or something else comes of it, that is told in the log, and steps go on being
    launched part by part.
    """
    assert loaded.flash is not None
    try:
        replay = Replay(
            loaded.model, pool, loaded.flash, most_rows=most_rows, most_tokens=loaded.context_tokens
        )
    except RuntimeError as failure:
        log.warning("decode steps are not recorded: %s", failure)
        return None
    for size in replay.sizes:
        found = replay.logits([probe] * size)
        differs = float(((found - expected).norm(dim=-1) / expected.norm()).max())
        if not differs < error:
            log.warning("decode steps are not recorded: one of %d is off by %.1e", size, differs)
            return None
    return replay


@contextlib.contextmanager
def recording(device: torch.device) -> Iterator[Record]:
    """Inside, computations are recorded on a card; elsewhere each is computed anew."""
    if device.type != "cuda":
        yield lambda compute: compute
        return
    before = torch.cuda.current_stream(device)
    # Whatever a recording fails with, its stream is left behind with it.
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(before)
    memory = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(side):
        yield lambda compute: _recorded(compute, side, memory)
    before.wait_stream(side)


def _recorded(compute: Compute, side: torch.cuda.Stream, memory: Any) -> Compute:
    compute()  # kernels that are built, and what libraries allocate, at the first call
    with _waiting_is_refused():
        compute()  # a recording that breaks off leaves torch's allocator in the midst of it
    graph = torch.cuda.CUDAGraph()
    # Recordings are never under way at the same time, so they share their memory.
    with torch.cuda.graph(graph, memory, side, capture_error_mode="thread_local"):
        result = compute()

    def replayed() -> torch.Tensor:
        graph.replay()
        return result

    return replayed


@contextlib.contextmanager
def _waiting_is_refused() -> Iterator[None]:
    """Inside, whoever has the host wait for the card meets a `RuntimeError`."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
