"""The KV tensors: one store, laid out so that a run of blocks is a view.

Owns the bytes of every block, and how rows are rounded where KV is kept in fewer bits than they are
computed in. Slot s of layer l is `keys[l][s]`; block b is the slots
`[b * block_tokens, (b + 1) * block_tokens)`, so neighbouring blocks are neighbouring rows. It
refuses to know which block belongs to whom: it is told what to write, copy and wipe.
"""

import contextlib
import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.memory import fetched, touch, zeroed
from engine.step import Copy, Run, Slots, Wipe

FP8 = torch.float8_e4m3fn
"""Four bits of exponent and three of fraction: what is between 2^-6 and 448 is off by a sixteenth at
most, what is smaller by 2^-10, what is larger becomes 448. There is no scale: it would change no bit
of the fraction. The default model's largest number is 20, and 1 % of its keys and 3 % of its values
are smaller than 2^-6."""

# numpy knows neither bfloat16 nor fp8; a copy only needs the bits.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


class KVShape(msgspec.Struct, frozen=True, kw_only=True):
    """What one token's KV entry is made of; the same in every layer."""

    layers: int
    kv_heads: int
    head_size: int
    dtype_bytes: int

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.dtype_bytes


class Empty(NamedTuple):
    """What is in a slot that holds nothing."""

    keys: float
    values: float


ZERO = Empty(0.0, 0.0)
POISON = Empty(math.nan, math.nan)
POISONED_KEYS = Empty(math.nan, 0.0)
"""The score of whoever reads one is NaN, and who multiplies by zero what he hides meets a number."""


class Pool:
    """`blocks` blocks of `block_tokens` slots.

    Everything here mutates the tensors in place and none of it checks ownership.
    """

    def __init__(
        self,
        shape: KVShape,
        *,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        empty: Empty = ZERO,
    ) -> None:
        self.shape = shape
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._empty = empty
        slots = blocks * block_tokens
        # [2 (K, V), layers, slots, kv heads, head size]: flash-attn's order within a layer, and
        # the one whose gathers are cheapest, since a slot's row is contiguous.
        size = (2, shape.layers, slots, shape.kv_heads, shape.head_size)
        if device.type == "cpu":
            self._store = zeroed(size, dtype)
        else:
            self._store = torch.empty(size, dtype=dtype, device=device)
        self._calm = threading.Event()
        self._calm.set()
        # A large page is cleared when it is first written to, and a block lies in two for each
        # layer, which took a turn 0.3 s: so that is done before, when nothing is computed.
        rows = self._store.flatten(0, 1)
        if device.type != "cpu" or empty != ZERO or touch(rows, self._calm) is None:
            self._clear(0, slots)

    @property
    def device(self) -> torch.device:
        return self._store.device

    @property
    def dtype(self) -> torch.dtype:
        return self._store.dtype

    def keys(self, layer: int) -> torch.Tensor:
        """All keys of a layer: [slots, kv heads, head size]."""
        return self._store[0, layer]

    def values(self, layer: int) -> torch.Tensor:
        """All values of a layer: [slots, kv heads, head size]."""
        return self._store[1, layer]

    def key_blocks(self, layer: int) -> torch.Tensor:
        """The same keys by blocks: [blocks, block tokens, kv heads, head size]."""
        return self._by_blocks(self.keys(layer))

    def value_blocks(self, layer: int) -> torch.Tensor:
        """The same values by blocks: [blocks, block tokens, kv heads, head size]."""
        return self._by_blocks(self.values(layer))

    def _by_blocks(self, slots: torch.Tensor) -> torch.Tensor:
        return slots.view(self.blocks, self.block_tokens, *slots.shape[1:])

    def put(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write rows [rows, kv heads, head size] into a layer's `slots`, rounded as they are kept."""
        self.keys(layer)[slots] = kept(keys, self.dtype)
        self.values(layer)[slots] = kept(values, self.dtype)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, its memory is not cleared ahead: whoever computes has the cores."""
        self._calm.clear()
        try:
            yield
        finally:
            self._calm.set()

    def copy(self, copies: Sequence[Copy]) -> None:
        """Carry out copy-on-write orders, in their order, in all layers."""
        for order in copies:
            source = order.source * self.block_tokens
            target = order.target * self.block_tokens
            self._store[:, :, target : target + order.slots] = self._store[
                :, :, source : source + order.slots
            ]

    def read(self, slots: Slots) -> torch.Tensor:
        """A copy of some slots' KV: [2, layers, tokens, kv heads, head size], on the CPU.

        May run beside the thread that computes: on a CPU it uses no thread but the caller's. Of a
        GPU's pool it is in pinned memory, and whole when the caller's stream has come so far.
        """
        if self.device.type != "cpu":
            spans = [
                self._store[:, :, start : start + tokens] for _, start, tokens in self._spans(slots)
            ]
            return fetched(torch.cat(spans, dim=2))
        shape = (*self._store.shape[:2], slots.tokens, *self._store.shape[3:])
        kv = torch.empty(shape, dtype=self._store.dtype)
        ours, theirs = _plain(self._store), _plain(kv)
        for at, start, tokens in self._spans(slots):
            theirs[:, :, at : at + tokens] = ours[:, :, start : start + tokens]
        return kv

    def write(self, slots: Slots, kv: torch.Tensor, skip: int = 0) -> None:
        """Put KV [2, layers, tokens or more, kv heads, head size] from `skip` on into some slots.

        As `read`: a GPU's is sent whole, and there when the caller's stream has come so far.
        """
        kv = kv.to(self.device, non_blocking=True)
        ours, theirs = _plain(self._store), _plain(kv)[:, :, skip:]
        for at, start, tokens in self._spans(slots):
            ours[:, :, start : start + tokens] = theirs[:, :, at : at + tokens]

    def wipe(self, wipes: Sequence[Wipe]) -> None:
        """Zero what is nobody's any more, or poison it in test mode, in all layers."""
        if not wipes:
            return
        start = end = 0
        for order in sorted(wipes, key=lambda order: order.block):
            first = order.block * self.block_tokens
            if first + order.behind != end:
                # Neighbouring slots at once: half the time of one block after the other.
                self._clear(start, end)
                start = first + order.behind
            end = first + self.block_tokens
        self._clear(start, end)

    def _clear(self, start: int, end: int) -> None:
        for part, empty in zip(self._store, self._empty, strict=True):
            part[:, start:end] = empty

    def _spans(self, slots: Slots) -> Iterator[tuple[int, int, int]]:
        """Neighbouring slots together: (tokens before them, first slot, how many)."""
        done = 0
        blocks = deque(slots.blocks)
        offset = slots.offset
        while done < slots.tokens:
            first = last = blocks.popleft()
            while blocks and blocks[0] == last + 1:
                last = blocks.popleft()
            start = first * self.block_tokens + offset
            tokens = min((last + 1) * self.block_tokens - start, slots.tokens - done)
            yield done, start, tokens
            done, offset = done + tokens, 0


def slots_of(run: Run, block_tokens: int, start: int = 0) -> NDArray[np.int64]:
    """The pool's slot of each position `[start, end)` of a run's sequence, int64."""
    end = run.start + len(run.token_ids)
    first = start // block_tokens
    blocks = np.asarray(run.block_table[first : -(-end // block_tokens)], dtype=np.int64)
    slots = blocks[:, None] * block_tokens + np.arange(block_tokens)
    return slots.ravel()[start - first * block_tokens : end - first * block_tokens]


def kept(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`rows` as a pool of `dtype` keeps them; what is no number stays none."""
    if dtype == FP8:
        # Devices and releases of torch differ in what becomes of a number that is too large.
        rows = rows.clamp(-torch.finfo(FP8).max, torch.finfo(FP8).max)
    return rows.to(dtype)


def _plain(kv: torch.Tensor) -> Any:
    """What KV is copied through: numpy's own view on a CPU, whose copies start no threads."""
    if kv.device.type != "cpu":
        return kv
    return kv.view(_BITS[kv.element_size()]).numpy()
