"""Weights in the groups of a quantised file, as the kernels of `grouped.h` want them.

Owns their room, and the proof that they are the weights whose place they take where rows are few.
It refuses to know where they come from (`engine/model/groups.py`).
"""

from collections.abc import Mapping

import torch

from engine.model.groups import BLOCK_BYTES, GROUP, NoGroups
from engine.model.memory import zeroed
from engine.model.native.library import Library, WeightFields
from engine.model.native.panels import Panels

# Of a product: bfloat16's rounding leaves a third of it, other weights a hundred times it.
_TOLERANCE = 1e-2


class GroupedWeights:
    """Room for the groups of a model, filled from the front."""

    def __init__(self, library: Library, blocks: Mapping[str, torch.Tensor]) -> None:
        self._library, self._blocks = library, blocks
        panel = library.panel
        sizes = (-(-len(rows) // panel) * panel * rows.shape[1] for rows in blocks.values())
        self._room = zeroed((sum(sizes),), torch.uint8)
        self._used = 0

    def beside(self, panels: Mapping[str, Panels]) -> WeightFields:
        """Lay out the groups of weights, by name, as their panels lie. Raises `NoGroups`."""
        bits, *others = {self._bits(name, weight) for name, weight in panels.items()}
        if others:
            raise NoGroups(f"{' and '.join(panels)} have digits of different sizes")
        start, panel = self._used, self._library.panel
        for at, (name, weight) in enumerate(panels.items()):
            panel_bytes = panel * weight.width // GROUP * BLOCK_BYTES[bits]
            first = self._used if weight.step == 1 else start + at * panel_bytes
            self._used += -(-weight.columns // panel) * panel_bytes
            groups = Groups(self._library, self._room[first:], bits=bits, like=weight)
            groups.fill(self._blocks[name])
            self._prove(name, groups, weight)
        fields = WeightFields(groups=self._room.data_ptr() + start, bits=bits)
        return fields

    def _bits(self, name: str, weight: Panels) -> int:
        rows = self._blocks.get(name, torch.empty(0, 0))
        for bits, block_bytes in BLOCK_BYTES.items():
            if rows.shape == (weight.columns, weight.width / GROUP * block_bytes):
                return bits
        raise NoGroups(f"{name} does not come in whole groups of {GROUP}")

    def _prove(self, name: str, groups: "Groups", weight: Panels) -> None:
        """Other weights, or damaged ones, would be served without a sign."""
        row = torch.randn((1, weight.width), generator=torch.Generator().manual_seed(1))
        row = row.to(weight.room.dtype)
        expected = weight.product(row).float()
        error = float((groups.product(row.float()) - expected).norm() / expected.norm())
        if not error < _TOLERANCE:
            raise NoGroups(f"the groups of {name} differ from its weights by {error:.1e}")


class Groups:
    """One weight [columns, width] in groups: a view into the room, laid out as `like`."""

    def __init__(self, library: Library, room: torch.Tensor, *, bits: int, like: Panels) -> None:
        self._library, self._room = library, room
        self._bits = bits
        self._sizes = like.columns, like.width, like.step

    def fill(self, blocks: torch.Tensor) -> None:
        blocks = blocks.contiguous()
        self._library.pack_groups(
            blocks.data_ptr(), self._room.data_ptr(), self._bits, *self._sizes
        )

    def product(self, rows: torch.Tensor, row_bits: int = 16) -> torch.Tensor:
        """What float32 rows [count, width] come to: times the weight transposed, float32.

        `row_bits`: what rows are rounded to; 8 is for groups of 4 bits.
        """
        columns, width, step = self._sizes
        rows = rows.contiguous()
        out = torch.empty((len(rows), columns))
        self._library.linear_groups(
            rows.data_ptr(),
            self._room.data_ptr(),
            out.data_ptr(),
            self._bits,
            row_bits,
            len(rows),
            width,
            columns,
            step,
        )
        return out
