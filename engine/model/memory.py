"""Large zeroed memory of a CPU, in pages as large as the system gives; what is given back, sent and fetched.

Weights and KV are streamed through: by small pages a core reads a third slower, and each is cleared
by itself when it is first touched. Nothing takes room before that.
"""

import contextlib
import ctypes
import math
import mmap
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

_LARGE_PAGE_BYTES = 2 << 20
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of <linux/mman.h>: give pages as if they were written to, and change none."""


def zeroed(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU that is all zero."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has small pages only
    store = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        store.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(store, dtype=dtype).view(*shape)


def sent(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """`array` on `device`, to be used in its stream's order; what the device computes goes on.

    A plain copy waits for that, and so does one from memory that the system may move.
    """
    host = torch.from_numpy(array)
    if device.type == "cuda" and torch.cuda.is_available():
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def fetched(kv: torch.Tensor) -> torch.Tensor:
    """A copy of a device's tensor in pinned memory of the host, whole when its stream has come so far.

    torch rounds such memory up to a power of two, and keeps what is let go for the next copy.
    """
    host = torch.empty(kv.shape, dtype=kv.dtype, pin_memory=kv.device.type == "cuda")
    return host.copy_(kv, non_blocking=True)


class Coming:
    """A copy in the host's memory of what a device has not computed yet."""

    def __init__(self, result: torch.Tensor) -> None:
        self._host = fetched(result)
        self._arrival: torch.cuda.Event | None = None
        if result.device.type == "cuda":
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record(torch.cuda.current_stream(result.device))

    def wait(self) -> torch.Tensor:
        """Until it is there, and not for what was launched behind it."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._host


def touch(rows: torch.Tensor, calm: threading.Event) -> threading.Thread | None:
    """Have the system give the memory of `rows` [rows, ...] before it is used; changes none of it.

    The first large page of each row is there on return. The rest follows in a thread while `calm` is
    set, front to back in all rows alike; the memory may be used meanwhile. None: this system cannot,
    and nothing is done.
    """
    pages = _pages(rows)
    if not all(_populate(rows, next(pages)) for _ in range(len(rows))):
        return None

    def rest() -> None:
        for page in pages:
            calm.wait()
            _populate(rows, page)

    thread = threading.Thread(target=rest, name="memory", daemon=True)
    thread.start()
    return thread


def give_back() -> None:
    """Have the allocator return what was freed: glibc keeps every weight below 32 MiB for itself."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _pages(rows: torch.Tensor) -> Iterator[range]:
    """Bytes of `rows`, a large page of each row in turn: small enough to hold no lock for long."""
    row_bytes = rows[0].nbytes
    for start in range(0, row_bytes, _LARGE_PAGE_BYTES):
        end = min(start + _LARGE_PAGE_BYTES, row_bytes)
        for row in range(len(rows)):
            yield range(row * row_bytes + start, row * row_bytes + end)


def _populate(rows: torch.Tensor, page: range) -> bool:
    # Through ctypes, which lets other threads run meanwhile; `mmap.madvise` does not.
    first = rows.data_ptr() + page.start
    first -= first % mmap.PAGESIZE
    length = ctypes.c_size_t(rows.data_ptr() + page.stop - first)
    with contextlib.suppress(AttributeError):
        status: int = ctypes.CDLL(None).madvise(ctypes.c_void_p(first), length, _POPULATE_WRITE)
        return status == 0
    return False
