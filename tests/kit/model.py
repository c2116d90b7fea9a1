"""The real model for tests: the default one, converted once into a cache folder and shared.

The folder outlives a test run (`KEEPWARM_TEST_CACHE`, or the temporary folder), so a conversion is
paid for once a machine. Loaded models are shared as well: nothing in them changes but the pool,
and every runner brings its own.
"""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import torch

from engine.api import JobId, Sampling
from engine.config import EngineConfig
from engine.model.load import LoadedModel
from engine.model.pool import FP8
from engine.model.runner import ModelRunner
from engine.model.source import prepare
from engine.step import BlockId, Copy, Draw, DrawnToken, Plan, Run, Wipe
from tests.kit.loaded import load_once

GREEDY = Sampling(temperature=0)


def model_cache() -> Path:
    """Where converted models are kept between test runs."""
    default = Path(tempfile.gettempdir()) / "keepwarm-test-cache"
    return Path(os.environ.get("KEEPWARM_TEST_CACHE", default))


def model_config(
    *,
    dtype: str = "float32",
    pool_blocks: int = 256,
    kernels: str = "auto",
    weights: str = "auto",
) -> EngineConfig:
    """A config with test mode on and a pool of about `pool_blocks` blocks of the default model."""
    token_bytes = 2 * 30 * 3 * 64 * (4 if dtype == "float32" else 2)
    return EngineConfig(
        data_dir=model_cache(),
        dtype=dtype,
        device="cpu",
        kernels=kernels,
        weights=weights,
        kv_memory_bytes=pool_blocks * 16 * token_bytes,
        disk_bytes=0,
        checks=True,
        poison=True,
    )


@functools.lru_cache(maxsize=4)
def loaded_model(
    dtype: str = "float32", kernels: str = "auto", weights: str = "auto"
) -> LoadedModel:
    """The default model; the first call on a machine converts it. Four are kept: each takes 1 GB."""
    return load_once(model_config(dtype=dtype, kernels=kernels, weights=weights))


def in_fp8(loaded: LoadedModel) -> LoadedModel:
    """The same model, its KV kept in fp8; it has to be one that torch computes."""
    kv = msgspec.structs.replace(loaded.kv, dtype_bytes=FP8.itemsize)
    return dataclasses.replace(loaded, kv=kv, kv_dtype=FP8)


def with_template(folder: Path, template: str) -> str:
    """The default model in a folder of its own, where it has another chat template."""
    config = model_config()
    for file in Path(prepare(config.model, config.data_dir)).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(template)
    return str(folder)


def encode(loaded: LoadedModel, text: str) -> list[int]:
    """The ids of a text without a template."""
    ids: list[int] = loaded.tokenizer.backend_tokenizer.encode(text).ids
    return ids


def generate(loaded: LoadedModel, prompt_ids: Sequence[int], tokens: int) -> list[int]:
    """What stock `generate` says, greedily, end of turn or not: the reference.

    It is asked once: what it says in fewer tokens is the beginning of what it says in more.
    """
    told = _told.setdefault(loaded.model, {})
    asked = tuple(prompt_ids)
    if len(told.get(asked, ())) < tokens:
        told[asked] = _generate(loaded, asked, tokens)
    return told[asked][:tokens]


_told: WeakKeyDictionary[torch.nn.Module, dict[tuple[int, ...], list[int]]] = WeakKeyDictionary()


def _generate(loaded: LoadedModel, prompt_ids: Sequence[int], tokens: int) -> list[int]:
    with loaded.own_attention():
        output = loaded.model.generate(
            torch.tensor([list(prompt_ids)]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
    reply: list[int] = output[0, len(prompt_ids) :].tolist()
    return reply


def run_of(token_ids: Sequence[int], start: int, table: Sequence[int]) -> Run:
    """A run that draws nothing."""
    return Run(
        job_id=JobId("run"),
        token_ids=token_ids,
        start=start,
        block_table=[BlockId(block) for block in table],
        draw=None,
    )


class Hand:
    """Plans made by hand for one runner: what a test says is what is run."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._steps: Iterator[int] = iter(range(1 << 30))

    def step(
        self,
        *runs: Run,
        copies: Sequence[Copy] = (),
        wipes: Sequence[int] = (),
    ) -> list[int | None]:
        """Run one plan; the token that each run drew."""
        plan = Plan(
            step=next(self._steps),
            copies=tuple(copies),
            runs=runs,
            wipes=tuple(Wipe(block=BlockId(block)) for block in wipes),
        )
        result = self.runner.collect(self.runner.launch(plan))
        return [run.drawn[0].token_id if run.drawn else None for run in result.runs]

    def drawn(self, run: Run) -> DrawnToken:
        """All that one run drew, alone in its step."""
        plan = Plan(step=next(self._steps), copies=(), runs=(run,))
        (token,) = self.runner.collect(self.runner.launch(plan)).runs[0].drawn
        return token


class Line:
    """One sequence in a test's hands: its ids, its table, and how much of it is computed."""

    def __init__(
        self, token_ids: Sequence[int], table: Sequence[int], *, computed: int = 0
    ) -> None:
        self.token_ids = list(token_ids)
        self.prompt_tokens = len(token_ids)
        self.table = [BlockId(block) for block in table]
        self.computed = computed

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.prompt_tokens :]

    def run(self, *, tokens: int | None = None, sampling: Sampling = GREEDY) -> Run:
        """The next run: all that is not computed, or the next `tokens` without a draw."""
        start = self.computed
        self.computed = len(self.token_ids) if tokens is None else start + tokens
        draw = Draw(
            sampling=sampling,
            seed=0,
            prompt_ids=self.token_ids[: self.prompt_tokens],
            output_ids=self.output_ids,
        )
        return Run(
            job_id=JobId("line"),
            token_ids=self.token_ids[start : self.computed],
            start=start,
            block_table=self.table,
            draw=draw if tokens is None else None,
        )

    def decode(self, hand: Hand, tokens: int) -> list[int]:
        """Draw `tokens` greedily, alone in the step; return them."""
        decode_together(hand, [self], tokens)
        return self.token_ids[-tokens:]


def decode_together(hand: Hand, lines: Sequence[Line], tokens: int) -> None:
    """Draw `tokens` greedily for each, all of them in every step."""
    for _ in range(tokens):
        drawn = hand.step(*(line.run() for line in lines))
        for line, token_id in zip(lines, drawn, strict=True):
            assert token_id is not None
            line.token_ids.append(token_id)
