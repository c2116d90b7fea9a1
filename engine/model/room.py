"""How large the pool may be: what a machine has left behind the weights and the largest step.

Owns that arithmetic, its figures and the refusal where something does not fit. On a GPU the largest
step is run once over one block and its peak measured; on a CPU, whose pool takes memory only as it
is written to, nothing is measured. It refuses to know how a step is computed.
"""

from collections.abc import Callable

import msgspec
import torch

from engine.api import JobId, Sampling
from engine.errors import Misconfigured
from engine.step import BlockId, Draw, Plan, Run

CPU_MOST_BYTES = 2 << 30
"""Of a pool that nobody gave a size, on a CPU: there it takes what others work with."""
CPU_SHARE = 4
"""It takes one byte in so many that are free."""
RESERVE_SHARE = 20
"""One byte in so many of a card is left to its driver, to libraries, to steps that are recorded, and to
what memory loses where it is cut into pieces."""
RESERVE_LEAST_BYTES = 512 << 20

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A device's memory once the weights are loaded, in bytes."""

    device: str
    free_bytes: int
    weights_bytes: int
    step_bytes: int
    """What the largest step takes while it is computed."""
    reserve_bytes: int
    usual_bytes: int | None
    """The most that a pool takes where nobody says; None: all there is."""

    @property
    def left_bytes(self) -> int:
        """For a pool, and for what is copied out of it."""
        return max(0, self.free_bytes - self.step_bytes - self.reserve_bytes)


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What of a pool is bound to the model and to who attends."""

    block_bytes: int
    block_tokens: int
    layers: int
    copied_layers: int
    """How much of a pool may lie copied while a layer attends, as a number of its layers."""
    usual_tokens: int
    """A pool that nobody gave a size holds at least these: a step's, or a shorter context's."""
    spare_tokens: int = 0
    """Of blocks that no sequence gets."""

    def least_tokens(self, asked_bytes: int | None) -> int:
        """Whoever asks for a small pool gets it: any serves that has a block for a short turn."""
        useful = self.usual_tokens if asked_bytes is None else self.block_tokens
        return useful + self.spare_tokens

    def most_bytes(self, left_bytes: int) -> int:
        """Of a pool that leaves room for what is copied out of it."""
        return left_bytes * self.layers // (self.layers + self.copied_layers)


def room_of_cpu(free_bytes: int, weights_bytes: int) -> Room:
    """A machine whose memory is everybody's: the pool takes a share of it, however much there is."""
    return Room(
        device="the machine",
        free_bytes=free_bytes,
        weights_bytes=weights_bytes,
        step_bytes=0,
        reserve_bytes=0,
        usual_bytes=min(free_bytes // CPU_SHARE, CPU_MOST_BYTES),
    )


def room_of_card(device: str, memory: tuple[int, int], weights_bytes: int, step_bytes: int) -> Room:
    """A card with `memory` bytes (free, in all): the pool takes what is left."""
    free_bytes, whole_bytes = memory
    return Room(
        device=device,
        free_bytes=free_bytes,
        weights_bytes=weights_bytes,
        step_bytes=step_bytes,
        reserve_bytes=max(whole_bytes // RESERVE_SHARE, RESERVE_LEAST_BYTES),
        usual_bytes=None,
    )


def blocks_in(room: Room, layout: Layout, asked_bytes: int | None) -> int:
    """Blocks of the pool, as asked for or as many as are usual; whether they fit is `check_fits`."""
    if asked_bytes is None:
        most = layout.most_bytes(room.left_bytes)
        asked_bytes = most if room.usual_bytes is None else min(most, room.usual_bytes)
    return asked_bytes // layout.block_bytes


def check_fits(room: Room, layout: Layout, asked_bytes: int | None, blocks: int) -> None:
    """Raise `Misconfigured`, with all figures, where a pool of so many blocks cannot serve here."""
    most = layout.most_bytes(room.left_bytes)
    too_large = asked_bytes is not None and asked_bytes > most
    least_tokens = layout.least_tokens(asked_bytes)
    least = -(-least_tokens // layout.block_tokens) * layout.block_bytes
    if blocks * layout.block_bytes >= least and not too_large:
        return
    if most < least:
        fix = (
            "free some, choose a smaller model, share it by tensor_parallel, or lower step_tokens "
            "and max_running"
        )
    elif too_large:
        fix = f"ask for at most {most >> 20}MiB, or leave it out"
    else:
        fix = f"ask for at least {-(-least >> 20)}MiB, or leave it out"
    asked = "not set" if asked_bytes is None else words_of(asked_bytes)
    copies = "" if not layout.copied_layers else " with what is copied out of it"
    raise Misconfigured(
        f"kv_memory_bytes is {asked}: such a pool does not fit. Behind weights of "
        f"{words_of(room.weights_bytes)} {room.device} has {words_of(room.free_bytes)} free; the "
        f"largest step takes {words_of(room.step_bytes)}, {words_of(room.reserve_bytes)} stay in "
        f"reserve, so a pool{copies} may take {words_of(most)}, and needs "
        f"{words_of(least)} for {least_tokens} tokens: {fix}"
    )


def words_of(amount_bytes: int) -> str:
    """As a reader of an error wants it, three digits."""
    for size, unit in _UNITS:
        if amount_bytes >= size:
            return f"{amount_bytes / size:.3g} {unit}"
    return f"{amount_bytes} bytes"


def largest_step(*, rows: int, draws: int, context_tokens: int, block_tokens: int) -> Plan:
    """The dearest step that may be planned, over block 0 alone: what it reads is no sequence.

    `draws` runs of which all but one have a single row, `rows` in all, each at the end of the
    context, each drawing in the dearest way.
    """
    chunk = rows - (draws - 1)
    table = [BlockId(0)] * -(-context_tokens // block_tokens)
    draw = Draw(
        sampling=Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=20),
        seed=0,
        prompt_ids=[0],
        output_ids=[0],
    )
    runs = [
        Run(
            job_id=JobId(f"largest-{at}"),
            token_ids=[0] * count,
            start=max(0, context_tokens - count),
            block_table=table,
            draw=draw,
        )
        for at, count in enumerate([min(chunk, context_tokens), *[1] * (draws - 1)])
    ]
    return Plan(step=0, copies=(), runs=tuple(runs))


# ---------------------------------------------------------------- what a machine says


def measured(device: torch.device, step: Callable[[], object]) -> Room:
    """A card's memory behind what is on it now, when `step` has run once."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    weights_bytes = torch.cuda.memory_allocated(device)
    try:
        step()
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError as error:
        raise Misconfigured(
            f"the largest step does not fit behind weights of {words_of(weights_bytes)} on {device} "
            f"({error}): lower step_tokens and max_running, or choose a smaller model"
        ) from error
    step_bytes = torch.cuda.max_memory_allocated(device) - weights_bytes
    # What libraries keep from now on is gone from what is free.
    torch.cuda.empty_cache()
    memory = torch.cuda.mem_get_info(device)
    return room_of_card(str(device), memory, weights_bytes, step_bytes)
