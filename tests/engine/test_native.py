"""The native kernels: built once, said why not, and the same model as torch computes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.api import Sampling
from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.model.load import load
from engine.model.native import library as building
from engine.model.native.library import Unavailable, library
from engine.model.runner import ModelRunner
from engine.model.source import prepare
from tests.kit.model import Hand, Line, encode, loaded_model, model_cache, model_config

TEXT = (
    "The harbour master counted nineteen boats before the fog came in, and wrote each of them down "
    "with the hour, the weather and the name that her owner had given her. In the evening there "
    "were twenty."
)
SMALL: dict[str, Any] = {
    "vocab_size": 49_152 + 7,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
}


def hand_of(kernels: str, dtype: str = "float32", **changes: Any) -> Hand:
    loaded = loaded_model(dtype, kernels)
    config = EngineConfig(**{**fields(model_config(dtype=dtype, kernels=kernels)), **changes})
    return Hand(ModelRunner(loaded, config))


def fields(config: EngineConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def save(folder: Path, model: Any) -> EngineConfig:
    """A config for a model with random weights and the default tokenizer."""
    model.save_pretrained(folder)
    converted = Path(prepare("default", model_cache()))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(converted / name, folder / name)
    return EngineConfig(
        data_dir=model_cache(),
        model=str(folder),
        dtype="float32",
        kv_memory_bytes=4 << 20,
        disk_bytes=0,
        checks=True,
        poison=True,
    )


def with_kernels(config: EngineConfig, kernels: str) -> EngineConfig:
    return EngineConfig(**{**fields(config), "kernels": kernels})


# ---------------------------------------------------------------- the same model


def test_06_both_kernels_say_the_same_in_float32():
    ids = encode(loaded_model(), TEXT)
    replies = [Line(ids, range(20)).decode(hand_of(kernels), 40) for kernels in ("native", "torch")]

    assert replies[0] == replies[1]


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_06_in_bfloat16_both_kernels_keep_the_odds_of_float32(kernels):
    loaded = loaded_model(kernels="torch")
    ids = encode(loaded, TEXT)
    exact = loaded.reference_logits(ids).log_softmax(-1)
    hand = hand_of(kernels, "bfloat16")
    line = Line(ids, range(20))
    hand.step(line.run(tokens=25))

    best = hand.drawn(line.run(sampling=Sampling(temperature=0, logprobs=20)))

    assert all(abs(logprob - float(exact[token_id])) < 0.15 for token_id, logprob in best.top[:5])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_06_a_runs_logits_are_the_same_bits_in_any_company_and_on_any_threads(dtype):
    loaded = loaded_model(dtype, "native", "dtype")
    ids = encode(loaded, TEXT)
    passes = []
    for threads in (1, 3):
        runner = ModelRunner(loaded, model_config(dtype=dtype))
        assert loaded.decoder is not None
        passes.append((runner, loaded.decoder.over(runner.pool, threads)))
    (_, alone), (_, together) = passes

    def runs_of(start: int, end: int) -> list[Any]:
        lines = [Line(ids[at:], range(at * 20, at * 20 + 20), computed=start) for at in range(5)]
        for line in lines:
            line.token_ids = line.token_ids[: end + line.table[0] // 20]
        return [line.run() for line in lines]

    for start, end in ((0, 20), (20, 21), (21, 30)):
        runs = runs_of(start, end)
        ends = [sum(len(run.token_ids) for run in runs[: at + 1]) - 1 for at in range(len(runs))]
        apart = [alone.logits([run], [len(run.token_ids) - 1]) for run in runs]
        assert torch.equal(together.logits(runs, ends), torch.cat(apart))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: LlamaForCausalLM(LlamaConfig(**SMALL)), id="untied"),
        pytest.param(
            lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)), id="tied"
        ),
        pytest.param(
            lambda: LlamaForCausalLM(LlamaConfig(**{**SMALL, "head_dim": 128})), id="wide heads"
        ),
        pytest.param(
            lambda: LlamaForCausalLM(
                LlamaConfig(
                    **SMALL,
                    rope_parameters={
                        "rope_type": "yarn",
                        "factor": 4.0,
                        "rope_theta": 10_000.0,
                        "original_max_position_embeddings": 64,
                    },
                )
            ),
            id="yarn",
        ),
        pytest.param(lambda: with_biases(Qwen2ForCausalLM(Qwen2Config(**SMALL))), id="biases"),
    ],
)
def test_a_model_of_the_family_is_computed_whole(tmp_path, model):
    torch.manual_seed(3)
    config = save(tmp_path, model())
    expected = load(with_kernels(config, "torch"))
    served = ModelRunner(load(with_kernels(config, "native")), config)
    ids = encode(expected, TEXT)

    served.warm_up()
    best = Hand(served).drawn(Line(ids, range(8)).run(sampling=Sampling(logprobs=20)))

    assert served.attention == "native kernels (whole step)"
    exact = expected.reference_logits(ids).log_softmax(-1)
    for token_id, logprob in best.top:
        assert logprob == pytest.approx(float(exact[token_id]), abs=1e-4)


def with_biases(model: Any) -> Any:
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def test_another_model_has_its_attention_computed_natively(tmp_path):
    torch.manual_seed(4)
    config = save(tmp_path, Qwen3ForCausalLM(Qwen3Config(**SMALL)))
    said: list[str] = []
    served = ModelRunner(load(config, said.append), config)
    ids = encode(loaded_model(), TEXT)

    served.warm_up()
    best = Hand(served).drawn(Line(ids, range(8)).run(sampling=Sampling(logprobs=20)))

    assert served.attention == "native kernels (attention)"
    assert said[-1] == (
        "torch computes all but attention, not the native kernels: they do not know "
        "Qwen3ForCausalLM"
    )
    exact = load(with_kernels(config, "torch")).reference_logits(ids).log_softmax(-1)
    for token_id, logprob in best.top:
        assert logprob == pytest.approx(float(exact[token_id]), abs=1e-4)


def test_the_stock_modules_multiply_with_the_packed_weights():
    packed, plain = (loaded_model(kernels=kernels) for kernels in ("native", "torch"))
    ids = torch.tensor(encode(plain, TEXT))

    for loaded in (packed, plain):
        loaded.model.eval()
    rows, expected = (loaded.model.model.embed_tokens(ids) for loaded in (packed, plain))

    assert torch.equal(rows, expected)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        ours, theirs = (
            getattr(loaded.model.model.layers[5].self_attn, name) for loaded in (packed, plain)
        )
        torch.testing.assert_close(ours(rows), theirs(rows), atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- built, or not


def test_without_a_compiler_torch_computes_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    config = save(tmp_path / "model", LlamaForCausalLM(LlamaConfig(**SMALL)))
    elsewhere = EngineConfig(**{**fields(config), "data_dir": tmp_path})
    said: list[str] = []

    served = ModelRunner(load(elsewhere, said.append), elsewhere)

    served.warm_up()
    assert served.attention.startswith("torch")
    assert said[-1] == ("torch computes all, not the native kernels: no C++ compiler is installed")
    with pytest.raises(Misconfigured, match=r"no C\+\+ compiler is installed; use auto or torch"):
        load(with_kernels(elsewhere, "native"))


def test_a_cpu_that_torch_serves_better_is_left_to_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "_cpu", lambda: "flags: sse2 avx f16c")

    with pytest.raises(Unavailable, match="neither AVX-512 nor AVX2"):
        library(tmp_path)


def test_a_build_that_fails_is_told_in_one_line(tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "error: no" >&2; exit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(compiler))

    with pytest.raises(Unavailable, match=r"^they could not be built: error: no$"):
        library(tmp_path)
    assert list((tmp_path / "native").iterdir()) == []


def test_a_library_that_is_damaged_is_no_reason_to_fail(tmp_path):
    (tmp_path / "native").mkdir()
    digest = building.digest_of(building.compiler_here())
    (tmp_path / "native" / f"{digest}.so").write_bytes(b"no library")

    with pytest.raises(Unavailable):
        library(tmp_path)


def test_processes_that_start_at_once_build_one_library(tmp_path):
    script = (  # what is built has nothing to compute, so it need not be quick
        "import sys; from pathlib import Path; from engine.model.native import library as building; "
        "building._FLAGS += ('-O0',); building.library(Path(sys.argv[1]))"
    )
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]

    assert [process.wait() for process in both] == [0, 0]
    assert len(list((tmp_path / "native").iterdir())) == 1
