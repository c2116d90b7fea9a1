"""Linear layers whose weight is laid out once the way the CPU's kernel wants it.

Owns the swap of `nn.Linear` for its packed form and refuses to know what the layers are for. Plain
`F.linear` re-orders a bfloat16 weight on every call, which at one row costs more than the product.
"""

import torch
from torch import nn


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` in bfloat16 on a CPU; the unpacked weight is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return product


def pack_linears(model: nn.Module) -> int:
    """Swap every plain linear layer of a bfloat16 CPU model in place; how many were swapped.

    None where the CPU's kernel for bfloat16 needs instructions that this one has not.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0
    linears = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for parent, name, child in linears:
        setattr(parent, name, PackedLinear(child))
    return len(linears)
