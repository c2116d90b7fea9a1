"""The groups of a quantised GGUF file's weights, kept beside the converted model as the file has them.

Owns which weights and which kinds of groups can serve, and that what is kept are the very numbers
of the converted model. It refuses to know how they are multiplied (`engine/model/native`).

A weight is kept as Q4_1 or Q8_0 lay it out: for each 32 numbers of a row a scale (a half), in Q4_1 a
least number (a half), and the digits. Q4_0 is written as Q4_1, which loses nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save_file
from safetensors.torch import load_file

GROUP = 32
BLOCK_BYTES = {4: 20, 8: 34}
"""Of 32 numbers, by their bits."""

_FILE = "model.groups"  # no `.safetensors`: Transformers and others take those for weights

_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class NoGroups(Exception):
    """A file's groups cannot be kept, or cannot serve; the message says why."""


def keep_groups(reader: Any, model: Any, folder: Path) -> None:
    """Write the groups of the GGUF file that `model` was made of. Raises `NoGroups`, having written none."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    kept = {}
    for theirs, ours in _names(model, is_tied="output.weight" not in tensors):
        try:
            tensor, weight = tensors[theirs], model.get_parameter(ours)
        except (KeyError, AttributeError):
            raise NoGroups(f"{theirs} is not in the file, or {ours} not in the model") from None
        kept[ours] = _in_order(tensor, weight.detach().numpy())
    save_file(kept, groups_file(folder))


def groups_file(folder: Path) -> Path:
    return folder / _FILE


def groups_in(folder: Path) -> dict[str, torch.Tensor]:
    """Bytes [rows, bytes of a row] by the names of the model's weights. Raises `NoGroups`."""
    path = groups_file(folder)
    if not path.exists():
        raise NoGroups("the model comes from no GGUF file in Q4_0, Q4_1 or Q8_0 throughout")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise NoGroups(f"{path} is damaged ({error}): remove its folder") from error


def _names(model: Any, *, is_tied: bool) -> Iterator[tuple[str, str]]:
    """Of every weight that is multiplied with, in the file and in the model."""
    for at in range(model.config.get_text_config().num_hidden_layers):
        for theirs, ours in _LAYER.items():
            yield f"blk.{at}.{theirs}.weight", f"model.layers.{at}.{ours}.weight"
    yield "token_embd.weight" if is_tied else "output.weight", "lm_head.weight"


def _in_order(tensor: Any, weight: np.ndarray) -> np.ndarray:
    """Blocks in the order of the model's rows, found by their numbers: converting moves some."""
    from gguf import GGMLQuantizationType, dequantize  # noqa: PLC0415  only a conversion needs it

    blocks, kind = np.asarray(tensor.data), tensor.tensor_type
    if kind == GGMLQuantizationType.Q4_0:
        blocks, kind = _from_q4_0(blocks), GGMLQuantizationType.Q4_1
    if kind not in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0):
        raise NoGroups(f"{tensor.name} is in {kind.name}")
    # Adding zero takes the sign from it: which zero a product gave is no difference.
    rows = {row.tobytes(): at for at, row in enumerate(dequantize(blocks, kind) + 0.0)}
    try:
        ordered: np.ndarray = blocks[[rows[row.tobytes()] for row in weight + 0.0]]
    except KeyError:
        raise NoGroups(f"{tensor.name} has other numbers than the model") from None
    return ordered


def _from_q4_0(blocks: np.ndarray) -> np.ndarray:
    """As Q4_1 has it: digits are counted from -8, so the least number is -8 scales."""
    parts = blocks.reshape(len(blocks), -1, 18)
    scales = np.ascontiguousarray(parts[..., :2])
    with np.errstate(over="ignore"):  # infinite is another number, and refused as such
        least = (scales.view(np.float16) * np.float16(-8)).view(np.uint8)
    return np.concatenate([scales, least, parts[..., 2:]], axis=-1).reshape(len(blocks), -1)
