"""The limits of a GPU as it is found, and what a model asks of it: operations and bytes, counted."""

import time
from collections.abc import Callable

import msgspec
import torch
from transformers import AutoConfig


class Work:
    """What a model takes, counted: operations of a prefill, bytes of a decode step."""

    def __init__(self, model: str, weight_bytes: int) -> None:
        config = AutoConfig.from_pretrained(model).get_text_config()
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        attention = config.hidden_size * size * (2 * heads + 2 * kv_heads)
        layer = attention + 3 * config.hidden_size * config.intermediate_size
        self._layers: int = config.num_hidden_layers
        self._query_size: int = heads * size
        self._weights: int = layer * self._layers
        self._head: int = config.hidden_size * config.vocab_size
        self._weight_bytes = weight_bytes
        self._kv_bytes: int = 2 * self._layers * kv_heads * size * weight_bytes

    def prefill(self, tokens: int) -> float:
        """Operations: every weight once a token, each row over what is before it, the last row's head."""
        pairs_of_rows = tokens * (tokens + 1) / 2
        attended = 4 * self._layers * self._query_size * pairs_of_rows
        return 2 * self._weights * tokens + attended + 2 * self._head

    def step_bytes(self, streams: int, history: int) -> float:
        """All weights once, and each stream's KV."""
        weights = (self._weights + self._head) * self._weight_bytes
        return weights + streams * history * self._kv_bytes


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a device can do, measured."""

    name: str
    products_per_s: float
    """Floating-point operations, a multiplication and its addition counted as two."""
    bytes_per_s: float

    def __str__(self) -> str:
        products, moved = self.products_per_s / 1e12, self.bytes_per_s / 1e9
        return f"{self.name}: {products:.3g} TFLOP/s of products, {moved:.4g} GB/s of memory"


def limits_of(device: torch.device, dtype: torch.dtype, side: int, copied_bytes: int) -> Card:
    """By the product of matrices of `side`, and by a copy, which reads and writes; best of five."""
    one = torch.randn(side, side, device=device).to(dtype)
    product_s = _best(device, lambda: one @ one)
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best(device, lambda: target.copy_(source))
    on_gpu = device.type == "cuda"
    return Card(
        name=torch.cuda.get_device_name(device) if on_gpu else "a CPU",
        products_per_s=2 * side**3 / product_s,
        bytes_per_s=2 * copied_bytes / copy_s,
    )


def _best(device: torch.device, work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        _wait(device)
        began_s = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began_s)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
