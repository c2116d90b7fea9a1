"""Large zeroed memory of a CPU, in pages as large as the system gives; and what is given back.

Weights and KV are streamed through: by small pages a core reads a third slower, and each is cleared
by itself when it is first touched. Nothing takes room before that.
"""

import contextlib
import ctypes
import math
import mmap
from collections.abc import Sequence

import torch


def zeroed(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU that is all zero."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has small pages only
    store = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        store.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(store, dtype=dtype).view(*shape)


def give_back() -> None:
    """Have the allocator return what was freed: glibc keeps every weight below 32 MiB for itself."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
