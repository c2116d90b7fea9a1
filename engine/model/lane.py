"""Where copies between the pool and host memory run, so that nobody waits who computes.

On a GPU each direction has a stream of its own: a copy begins behind all that was launched before it
was ordered, and is over when an event behind it says so, for which only the thread that carries
waits. On a CPU a copy is over when it returns, and all of this is nothing.
"""

import contextlib
from collections.abc import Iterator

import torch

Mark = torch.cuda.Event | None
"""A place in what has been launched; None on a CPU, where nothing is ever under way."""


class Lane:
    """One direction. Not for two threads at a time, but for who orders and who carries."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def ordered(self) -> Mark:
        """Behind what has been launched so far; asked for by the thread that computes."""
        if self._stream is None:
            return None
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    @contextlib.contextmanager
    def behind(self, mark: Mark) -> Iterator[None]:
        """Inside, copies are queued behind `mark`; when it ends they are over."""
        if mark is None:
            yield
            return
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            mark.wait()
            try:
                yield
            finally:
                done.record()
                done.synchronize()
