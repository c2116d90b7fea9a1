"""A decoder of the Llama family that runs a whole step in one call of the native kernels.

Owns which models that fits and their weights in panels, held once: the stock modules, which stay
as the reference, multiply with the same panels. It refuses to know plans and sampling.
"""

from typing import Any

import torch
from torch import nn

from engine.model.memory import zeroed
from engine.model.native.library import (
    PANEL,
    LayerFields,
    Library,
    ModelFields,
    Unavailable,
)
from engine.model.native.passes import Passes, check_heads
from engine.model.pool import Pool

# Plain pre-norm decoders: RMS norms, rotary positions, grouped heads, a SiLU-gated MLP.
_FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


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
            size = -(-columns // PANEL) * PANEL * width
            start = self._used + (at * PANEL * width if interleaved else 0)
            end = start + step * size - (step - 1) * PANEL * width
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
        self.columns, self.width, self._step = columns, width, step

    def fill(self, weight: torch.Tensor) -> None:
        weight = weight.detach().contiguous()
        self._library.pack(
            weight.data_ptr(),
            self.room.data_ptr(),
            weight.element_size(),
            self.columns,
            self.width,
            self._step,
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
            self._step,
        )
        return out

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: [..., width]."""
        units = 4 // self.room.element_size()
        panels = self.room.view(-1, self.width // units, PANEL, units)
        return panels[ids // PANEL, :, ids % PANEL].flatten(-2)


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


class Decoder:
    """The weights of one model as the kernels want them. Swaps the model's own linear layers."""

    def __init__(self, library: Library, model: Any) -> None:
        """Raises `Unavailable`, and changes nothing, where the kernels do not fit the model."""
        _check(model)
        config = model.config
        self.library = library
        head = model.lm_head.weight
        self.dtype = head.dtype
        embedding = model.model.embed_tokens.weight
        is_tied = embedding.data_ptr() == head.data_ptr()
        # A generator, so that each layer's own weights go as soon as they are packed.
        room = sum(
            -(-child.out_features // PANEL) * PANEL * child.in_features
            for child in model.modules()
            if isinstance(child, nn.Linear)
        )
        self._weights = PackedWeights(library, self.dtype, room)
        self._kept: list[torch.Tensor] = []
        self._layers = [self._layer(layer) for layer in model.model.layers]
        (packed_head,) = self._weights.add(head)
        model.lm_head = PanelLinear(model.lm_head, packed_head)
        if is_tied:
            model.model.embed_tokens = PanelEmbedding(packed_head)
        rotary = model.model.rotary_emb
        attention = model.model.layers[0].self_attn
        self._fields: dict[str, Any] = {
            "norm": self._keep(model.model.norm.weight),
            "head": packed_head.room.data_ptr(),
            "embedding": packed_head.room.data_ptr() if is_tied else embedding.data_ptr(),
            "embedding_is_packed": is_tied,
            "frequencies": self._keep(rotary.inv_freq),
            "layer_count": len(self._layers),
            "width": config.hidden_size,
            "inner": config.intermediate_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_size": attention.head_dim,
            "vocabulary": config.vocab_size,
            "epsilon": config.rms_norm_eps,
            "scaling": attention.scaling,
            "rotary_scaling": rotary.attention_scaling,
        }
        if not is_tied:
            self._kept.append(embedding)

    def over(self, pool: Pool, threads: int) -> Passes:
        """What runs steps over the KV of one pool."""
        layers = (LayerFields * len(self._layers))()
        for at, fields in enumerate(self._layers):
            layers[at] = LayerFields(
                **fields, keys=pool.keys(at).data_ptr(), values=pool.values(at).data_ptr()
            )
        model = ModelFields(layers=layers, block_tokens=pool.block_tokens, **self._fields)
        return Passes(self.library, pool, model, threads, weights=self)

    def _layer(self, layer: Any) -> dict[str, int]:
        attention, mlp = layer.self_attn, layer.mlp
        inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
        q, k, v = self._weights.add(*(linear.weight for linear in inputs))
        (output,) = self._weights.add(attention.o_proj.weight)
        gate, up = self._weights.add(mlp.gate_proj.weight, mlp.up_proj.weight, interleaved=True)
        (down,) = self._weights.add(mlp.down_proj.weight)
        biases = [linear.bias for linear in inputs if linear.bias is not None]
        fields = {
            "attention_norm": self._keep(layer.input_layernorm.weight),
            "qkv": q.room.data_ptr(),
            "qkv_bias": self._keep(torch.cat(biases)) if biases else 0,
            "output": output.room.data_ptr(),
            "mlp_norm": self._keep(layer.post_attention_layernorm.weight),
            "gate_up": gate.room.data_ptr(),
            "down": down.room.data_ptr(),
        }
        for name, panels in (("q_proj", q), ("k_proj", k), ("v_proj", v), ("o_proj", output)):
            setattr(attention, name, PanelLinear(getattr(attention, name), panels))
        for name, panels in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            setattr(mlp, name, PanelLinear(getattr(mlp, name), panels))
        return fields

    def _keep(self, weight: torch.Tensor) -> int:
        """The address of a float32 copy that lives as long as this does."""
        copy = weight.detach().float().contiguous().clone()
        self._kept.append(copy)
        return copy.data_ptr()


def _check(model: Any) -> None:
    """Raise `Unavailable` for a model that is no plain decoder of the family, or of odd sizes."""
    kind, config = type(model).__name__, model.config
    if kind not in _FAMILY:
        raise Unavailable(f"they do not know {kind}")
    if config.hidden_act not in ("silu", "swish"):
        raise Unavailable(f"they do not know the activation {config.hidden_act!r}")
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    others = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj, model.lm_head)
    if any(linear.bias is not None for linear in others):
        raise Unavailable("they know biases of queries, keys and values only")
    if model.lm_head.weight.device.type != "cpu":
        raise Unavailable("they run on a CPU only")
    check_heads(attention.num_key_value_groups, attention.head_dim)
    if config.hidden_size % PANEL or config.intermediate_size % PANEL:
        raise Unavailable(f"they know widths that are multiples of {PANEL} only")
