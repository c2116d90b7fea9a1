"""A decoder of the Llama family that runs a whole step in one call of the native kernels.

Owns which models that fits and their weights in panels, held once: the stock modules, which stay
as the reference, multiply with the same panels. Where the model's file has its weights in groups,
those may be held as well, for products of few rows, and of many in bytes. It refuses to know plans
and sampling.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from engine.model.groups import GROUP
from engine.model.native.grouped import GroupedWeights
from engine.model.native.library import (
    LayerFields,
    Library,
    ModelFields,
    Unavailable,
    WeightFields,
)
from engine.model.native.panels import PackedWeights, PanelEmbedding, PanelLinear, Panels
from engine.model.native.passes import Passes, check_heads
from engine.model.pool import Pool

# Plain pre-norm decoders: RMS norms, rotary positions, grouped heads, a SiLU-gated MLP.
_FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")

_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Which of a layer's weights are one product."""
_HEAD = "lm_head.weight"


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
            -(-child.out_features // library.panel) * library.panel * child.in_features
            for child in model.modules()
            if isinstance(child, nn.Linear)
        )
        self._weights = PackedWeights(library, self.dtype, room)
        self._kept: list[torch.Tensor] = []
        self._panels: dict[str, Panels] = {}
        self._layers = [self._layer(at, layer) for at, layer in enumerate(model.model.layers)]
        (packed_head,) = self._weights.add(head)
        self._panels[_HEAD] = packed_head
        model.lm_head = PanelLinear(model.lm_head, packed_head)
        if is_tied:
            model.model.embed_tokens = PanelEmbedding(packed_head)
        rotary = model.model.rotary_emb
        attention = model.model.layers[0].self_attn
        self._fields: dict[str, Any] = {
            "norm": self._keep(model.model.norm.weight),
            "head": WeightFields(panels=packed_head.room.data_ptr()),
            "embedding": packed_head.room.data_ptr() if is_tied else embedding.data_ptr(),
            "embedding_is_packed": is_tied,
            "few_rows": 0,
            "in_bytes": False,
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

    def take_groups(self, blocks: Mapping[str, torch.Tensor]) -> None:
        """Multiply few rows with groups, and many where that is faster; by the weights' names.

        Raises `NoGroups`, and changes nothing, where they are not those of all weights.
        """
        grouped = GroupedWeights(self.library, blocks)
        taken: list[tuple[WeightFields, WeightFields]] = []

        def take(fields: WeightFields, *names: str) -> None:
            taken.append((fields, grouped.beside({name: self._panels[name] for name in names})))

        for at, layer in enumerate(self._layers):
            for part, names in _FUSED.items():
                take(layer[part], *(_weight(at, name) for name in names))
        take(self._fields["head"], _HEAD)
        for fields, groups in taken:
            fields.groups, fields.bits = groups.groups, groups.bits
        self._grouped = grouped
        self._fields["few_rows"] = self.library.few_rows
        self._fields["in_bytes"] = self.library.prefers_bytes and all(
            layer[part].bits == 4 for layer in self._layers for part in _FUSED
        )

    @property
    def words_of_groups(self) -> str:
        """What of a step is multiplied with them."""
        few = f"up to {self._fields['few_rows']} tokens at a time"
        return f"{few}, and more of them in 8 bits" if self._fields["in_bytes"] else few

    def over(self, pool: Pool, threads: int) -> Passes:
        """What runs steps over the KV of one pool."""
        layers = (LayerFields * len(self._layers))()
        for at, fields in enumerate(self._layers):
            layers[at] = LayerFields(
                **fields, keys=pool.keys(at).data_ptr(), values=pool.values(at).data_ptr()
            )
        model = ModelFields(layers=layers, block_tokens=pool.block_tokens, **self._fields)
        return Passes(self.library, pool, model, threads, weights=self)

    def _layer(self, at: int, layer: Any) -> dict[str, Any]:
        attention, mlp = layer.self_attn, layer.mlp
        inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
        q, k, v = self._weights.add(*(linear.weight for linear in inputs))
        (output,) = self._weights.add(attention.o_proj.weight)
        gate, up = self._weights.add(mlp.gate_proj.weight, mlp.up_proj.weight, interleaved=True)
        (down,) = self._weights.add(mlp.down_proj.weight)
        biases = [linear.bias for linear in inputs if linear.bias is not None]
        fields = {
            "attention_norm": self._keep(layer.input_layernorm.weight),
            "qkv": WeightFields(panels=q.room.data_ptr()),
            "qkv_bias": self._keep(torch.cat(biases)) if biases else 0,
            "output": WeightFields(panels=output.room.data_ptr()),
            "mlp_norm": self._keep(layer.post_attention_layernorm.weight),
            "gate_up": WeightFields(panels=gate.room.data_ptr()),
            "down": WeightFields(panels=down.room.data_ptr()),
        }
        for name, panels in zip(
            chain.from_iterable(_FUSED.values()), (q, k, v, output, gate, up, down), strict=True
        ):
            self._panels[_weight(at, name)] = panels
            layer.set_submodule(name, PanelLinear(layer.get_submodule(name), panels))
        return fields

    def _keep(self, weight: torch.Tensor) -> int:
        """The address of a float32 copy that lives as long as this does."""
        copy = weight.detach().float().contiguous().clone()
        self._kept.append(copy)
        return copy.data_ptr()


def _weight(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{name}.weight"


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
    if config.hidden_size % GROUP or config.intermediate_size % GROUP:
        raise Unavailable(f"they know widths that are multiples of {GROUP} only")
