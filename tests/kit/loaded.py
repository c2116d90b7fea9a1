"""The default model as it was loaded, kept for as long as this process lives, and whoever it forks.

Most of what opening an engine costs is reading and packing the same weights. Nothing in them changes:
every runner brings a pool of its own.
"""

import functools
import threading
from collections.abc import Hashable
from typing import cast

import msgspec
import torch

from engine import assembly
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.model.load import LoadedModel, Tokenizer, load
from engine.model.ranks import ALONE, Ranks
from engine.model.source import Progress, log
from engine.model.template import Renderer

KEPT = 3
"""Each takes up to 700 MB."""
_OTHERS = {
    "kv_memory_bytes": None,
    "pinned_share": 0.0,
    "pinned_share_per_user": 0.0,
    "prefix_index": "radix",
    "retention": "cost",
    "step_tokens": 1,
    "max_running": 1,
    "max_waiting": 0,
    "threads": None,
    "host_bytes": 0,
    "disk_bytes": 0,
    "checks": False,
    "poison": False,
}
"""What `load` does not ask for."""

_kept: dict[EngineConfig, tuple[LoadedModel, list[str]]] = {}
_one_loads = threading.Lock()


def load_once(
    config: EngineConfig, progress: Progress = log.info, ranks: Ranks = ALONE
) -> LoadedModel:
    """As `load`, which is asked once for what many engines are opened with."""
    if not _is_shared(config):
        return load(config, progress, ranks)
    made_in = (config.data_dir / "models").resolve().parent
    alike = msgspec.structs.replace(config, **_OTHERS, data_dir=made_in)
    with _one_loads:
        model, words = found = _kept.pop(alike) if alike in _kept else _load(alike)
        _kept[alike] = found
        for old in list(_kept)[:-KEPT]:
            del _kept[old]
    for text in words:
        progress(text)
    return model


@functools.lru_cache(maxsize=KEPT)
def render_once(tokenizer: Hashable, eos_token_ids: tuple[int, ...]) -> Renderer:
    """As `Renderer`, which looks a template through once."""
    return Renderer(cast("Tokenizer", tokenizer), eos_token_ids)


def keep_loaded() -> None:
    """From now on local engines of this process are opened over what is kept."""
    vars(assembly).update(load=load_once, Renderer=render_once)


def load_to_be_forked(config: EngineConfig) -> None:
    """Have what a fork will ask for, and none of torch's threads, for they are not forked.

    Whose folder does not find the model that was converted for all tests converts it by itself, if it
    ever comes to that: most of these end before.
    """
    if _is_shared(config) and (config.data_dir / "models").is_symlink():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        model = load_once(config)
        render_once(cast("Hashable", model.tokenizer), model.eos_token_ids)
        torch.set_num_threads(threads)


def _is_shared(config: EngineConfig) -> bool:
    """Where torch computes, a model's attention is switched while an engine is opened over it.

    And a GPU that was looked at is lost to forks.
    """
    on_cpu = config.device == "cpu" or torch.cuda.device_count() == 0
    is_native = config.kernels in ("auto", "native") and config.kv_dtype == "auto"
    return on_cpu and is_native and config.model == DEFAULT_MODEL and config.tensor_parallel == 1


def _load(config: EngineConfig) -> tuple[LoadedModel, list[str]]:
    words: list[str] = []
    return load(config, words.append), words
