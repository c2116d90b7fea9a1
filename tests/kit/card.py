"""A GPU that is not there, on a CPU: nothing is computed, and whoever waits for it is seen.

Its tensors are torch's of the device `meta`, with a shape and no numbers: asking for one is refused
(`item`, `nonzero`, an index of booleans), as is a tensor of the host among its own. Copies to it and
from it are counted, in the way that each was asked for. Not seen: whether a host's memory is pinned.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CARD = torch.device("meta")


class Traffic(TorchDispatchMode):
    """What goes between it and the host."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        """Calls in which the host waits for it."""
        self.fetched = 0
        """Copies to the host that are on their way; what they bring is zero."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        options = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "copy_":
            return self._copy(func, args, options)
        if name in ("to", "_to_copy"):
            return self._sent(func, args, options)
        given = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
        kinds = {one.device.type for one in given if one.ndim}
        assert len(kinds) < 2, f"{func} of tensors on {kinds}"
        return func(*args, **options)

    def _copy(self, func: Any, args: Any, options: Any) -> object:
        target, source, *rest = args
        later = bool(rest and rest[0]) or options.get("non_blocking", False)
        self._count(source, target.device, later=later)
        if (source.device, target.device.type) == (CARD, "cpu"):
            return target.zero_()
        return func(*args, **options)

    def _sent(self, func: Any, args: Any, options: Any) -> object:
        source, *rest = args
        devices = (one for one in (options.get("device"), *rest) if isinstance(one, torch.device))
        target = next(devices, source.device)
        later = options.get("non_blocking", False) or any(one is True for one in rest[-2:-1])
        self._count(source, target, later=later)
        if (source.device, target.type) == (CARD, "cpu"):
            return torch.zeros(source.shape, dtype=options.get("dtype") or source.dtype)
        return func(*args, **options)

    def _count(self, source: torch.Tensor, target: torch.device, *, later: bool) -> None:
        if source.device.type == target.type:
            return
        if not later:
            self.waits.append(f"a copy from {source.device} to {target}")
        elif target.type == "cpu":
            self.fetched += 1


class _Written(TorchFunctionMode):
    """What Python's numbers become is sent as well, and waited for."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        options = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and options.get("device") not in (None, "cpu"):
            self._traffic.waits.append(f"{func.__name__} on {options['device']}")
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if args[0].device == CARD and any(isinstance(part, list) for part in parts):
                self._traffic.waits.append("an index of Python's numbers")
        return func(*args, **options)


@contextlib.contextmanager
def watched() -> Iterator[Traffic]:
    """Inside, what goes between the host and the card is counted."""
    with Traffic() as traffic, _Written(traffic):
        yield traffic
