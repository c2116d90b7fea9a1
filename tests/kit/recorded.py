"""A stand-in for CUDA graphs, on a CPU: what one launches is recorded, call by call, and repeated.

As strict as they are. A call is repeated over the very tensors it was made with, so whatever a step
brought in another way is that of the recording for ever, and a call that has the host wait for its
result is refused. What a package of kernels does counts as one call.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from engine.model.replay import Compute, Record
from tests.kit.kernels import Observed

WAITING = ("item", "is_nonzero", "nonzero", "masked_select", "unique", "equal")
"""In inference mode torch shows calls as they are written."""


@contextlib.contextmanager
def recording(_device: torch.device) -> Iterator[Record]:
    """As that of `engine.model.replay`."""
    yield _recorded


def _recorded(compute: Compute) -> Compute:
    compute()
    graph = _Graph()
    with graph:
        result = compute()

    def replayed() -> torch.Tensor:
        for call in graph.calls:
            call()
        return result

    return replayed


class _Graph(Observed):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        arguments = kwargs or {}
        if func.overloadpacket.__name__ in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = func(*args, **arguments)
        if func._schema.is_mutable:
            self.calls.append(partial(func, *args, **arguments))
        elif not _storages(out) & _storages((args, arguments)):  # else it is a view
            self.calls.append(partial(_repeat, partial(func, *args, **arguments), out))
        return out

    def launch(self, kernel: Callable[[], object]) -> object:
        with _disable_current_modes():
            out = kernel()
        self.calls.append(partial(_repeat, kernel, out))
        return out


def _storages(tree: object) -> set[int]:
    return {
        leaf.untyped_storage()._cdata
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
    }


def _repeat(call: Callable[[], object], out: object) -> None:
    for old, new in zip(tree_leaves(out), tree_leaves(call()), strict=True):
        if isinstance(old, torch.Tensor):
            old.copy_(new)
