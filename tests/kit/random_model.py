"""Models of random weights in any shape, with the default model's tokenizer and its template.

Small ones have heads that several ranks can share evenly; large ones cost what a real one costs.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.model.source import prepare
from tests.kit.engines import DATA_DIR

SMALL: Mapping[str, int] = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}


def random_model(
    folder: Path,
    shape: Mapping[str, int] = SMALL,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> str:
    """Written into `folder`, the same each time on the same device; returns its name."""
    tokenizer = AutoTokenizer.from_pretrained(prepare("default", DATA_DIR))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        # Wide enough that the best token stands apart from the next.
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype=dtype,
        **shape,
    )
    torch.manual_seed(5)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    tokenizer.save_pretrained(folder)
    model.to(dtype).save_pretrained(folder)
    return str(folder)
