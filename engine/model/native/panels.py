"""Weights in panels, as the kernels of `linear.h` want them, and the stock modules over them.

Owns how weights lie in one room and the swap of a stock layer for one over a packed weight. It
refuses to know what the layers are for.
"""

import torch
from torch import nn

from engine.model.memory import zeroed
from engine.model.native.library import Library


class PackedWeights:
    """Room for weights in panels, filled from the front."""

    def __init__(self, library: Library, dtype: torch.dtype, elements: int) -> None:
        self._library = library
        self._room = zeroed((elements,), dtype)
        self._used = 0

    def add(self, *weights: torch.Tensor, interleaved: bool = False) -> list["Panels"]:
        """Weights [columns, width] one after the other, or one panel of each in turn."""
        step = len(weights) if interleaved else 1
        packed = []
        for at, weight in enumerate(weights):
            columns, width = weight.shape
            panel = self._library.panel * width
            size = -(-columns // self._library.panel) * panel
            start = self._used + (at * panel if interleaved else 0)
            end = start + step * size - (step - 1) * panel
            panels = Panels(
                self._library, self._room[start:end], columns=columns, width=width, step=step
            )
            panels.fill(weight)
            packed.append(panels)
            if not interleaved:
                self._used += size
        if interleaved:
            self._used += sum(panels.columns * panels.width for panels in packed)
        return packed


class Panels:
    """One packed weight [columns, width]: a view into the room."""

    def __init__(
        self, library: Library, room: torch.Tensor, *, columns: int, width: int, step: int
    ) -> None:
        self._library = library
        self.room = room
        self.columns, self.width, self.step = columns, width, step

    def fill(self, weight: torch.Tensor) -> None:
        weight = weight.detach().contiguous()
        self._library.pack(
            weight.data_ptr(),
            self.room.data_ptr(),
            weight.element_size(),
            self.columns,
            self.width,
            self.step,
        )

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """What rows [..., width] come to: times the weight transposed."""
        rows = rows.contiguous()
        out = torch.empty((*rows.shape[:-1], self.columns), dtype=rows.dtype)
        self._library.linear(
            rows.data_ptr(),
            self.room.data_ptr(),
            out.data_ptr(),
            rows.element_size(),
            rows.numel() // self.width,
            self.width,
            self.columns,
            self.step,
        )
        return out

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: [..., width]."""
        units, panel = 4 // self.room.element_size(), self._library.panel
        panels = self.room.view(-1, self.width // units, panel, units)
        return panels[ids // panel, :, ids % panel].flatten(-2)


class PanelLinear(nn.Module):
    """A stock linear layer over a packed weight."""

    def __init__(self, linear: nn.Linear, panels: Panels) -> None:
        super().__init__()
        self._panels = panels
        self._bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product = self._panels.product(rows)
        return product if self._bias is None else product + self._bias


class PanelEmbedding(nn.Module):
    """A stock embedding over the packed head that it is tied to."""

    def __init__(self, panels: Panels) -> None:
        super().__init__()
        self._panels = panels

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self._panels.rows(ids)
