"""What an engine in this process is put together from, on every rank of its model.

Loads the model, proves it against its own attention, finds what earlier lives parked, and gives the
core its sizes. Blocks for seconds and belongs to no loop.
"""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.api import ModelCard
from engine.config import EngineConfig
from engine.core import Core
from engine.kv.cache import Cache
from engine.kv.pins import Budget
from engine.kv.tiers import TierSizes
from engine.leader import Followers, Leader
from engine.model.load import LoadedModel, load
from engine.model.runner import ModelRunner
from engine.model.template import Renderer
from engine.parts import CoreConfig
from engine.step import Runner

CANONICAL_TOKENS = 64
"""Passes of the deterministic mode: longer ones are quicker, and more is computed again."""

MakeCache = Callable[[CoreConfig, Callable[[], float]], Cache]
"""What builds the cache, given sizes and a meter: laws are tested on caches laid out otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the engine then works with."""

    core: Core
    runner: ModelRunner
    ranks: Runner
    """This one's runner, or all of them behind their leader."""
    followers: Followers
    renderer: Renderer
    card: ModelCard
    device: torch.device
    """This rank's."""


def assemble(
    config: EngineConfig,
    report: Callable[[str], None],
    make_cache: MakeCache,
    followers: Followers,
) -> Parts:
    """All but the threads. Raises `Misconfigured`, or `EngineLost` where a rank is gone."""
    loaded = load(config, report, followers.ranks)
    with ThreadPoolExecutor(1, "template") as beside:
        rendering = beside.submit(Renderer, loaded.tokenizer, loaded.eos_token_ids)
        runner = ModelRunner(loaded, config)
        report("checking the model against its own attention")
        runner.warm_up()
        renderer = rendering.result()
    card = _card(loaded, runner, renderer)
    core_config = _core_config(card, config, runner.disk_bytes)
    core = Core(core_config, cache=make_cache(core_config, time.thread_time))
    ranks = runner if loaded.ranks.size == 1 else Leader(runner, followers)
    core.load(ranks.parked(), refused=ranks.refused)
    return Parts(
        core=core,
        runner=runner,
        ranks=ranks,
        followers=followers,
        renderer=renderer,
        card=card,
        device=loaded.device,
    )


def _card(loaded: LoadedModel, runner: ModelRunner, renderer: Renderer) -> ModelCard:
    return ModelCard(
        name=loaded.name,
        model_fingerprint=loaded.model_fingerprint,
        template_fingerprint=loaded.template_fingerprint,
        boot_id=secrets.token_hex(8),
        context_tokens=loaded.context_tokens,
        block_tokens=runner.pool.block_tokens,
        pool_blocks=runner.blocks,
        kv_bytes_per_token=loaded.kv.token_bytes * loaded.ranks.size,
        dtype=loaded.formats,
        device=_devices(loaded),
        attention=runner.attention,
        vocabulary_tokens=loaded.vocabulary_tokens,
        eos_token_ids=loaded.eos_token_ids,
        template=renderer.finding,
    )


def _devices(loaded: LoadedModel) -> str:
    size = loaded.ranks.size
    return str(loaded.device) if size == 1 else f"{size} x {loaded.device.type}"


def _core_config(card: ModelCard, config: EngineConfig, disk_bytes: int) -> CoreConfig:
    return CoreConfig(
        block_tokens=card.block_tokens,
        pool_blocks=card.pool_blocks,
        context_tokens=card.context_tokens,
        step_tokens=config.step_tokens,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        eos_token_ids=card.eos_token_ids,
        model_fingerprint=card.model_fingerprint,
        template_fingerprint=card.template_fingerprint,
        boot_id=card.boot_id,
        vocabulary_tokens=card.vocabulary_tokens,
        prefix_index=config.prefix_index,
        retention=config.retention,
        canonical_tokens=max(CANONICAL_TOKENS, card.block_tokens) if config.deterministic else 0,
        tiers=TierSizes(
            token_bytes=card.kv_bytes_per_token,
            host_bytes=config.host_bytes,
            disk_bytes=disk_bytes,
        ),
        checks=config.checks,
        budget=Budget(share=config.pinned_share, share_per_owner=config.pinned_share_per_user),
    )
