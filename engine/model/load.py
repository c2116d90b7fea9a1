"""From a name to a model in memory: modules, tokenizer, fingerprints, limits.

Owns the choice of dtype and device, what the rest of the engine needs to know about a model, and
the refusal of models whose attention the paged cache does not compute. It refuses to know where
the files come from (`engine/model/source.py`) and what a prompt is.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoTokenizer
from transformers.utils import cached_file

from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.model.flash import Card, FlashKernel, find_flash
from engine.model.groups import NoGroups, groups_file, groups_in
from engine.model.memory import give_back
from engine.model.native.decoder import Decoder
from engine.model.native.library import Library, Unavailable, library
from engine.model.packed import pack_linears
from engine.model.paged import ATTENTION
from engine.model.pool import FP8, KVShape
from engine.model.ranks import ALONE, Ranks
from engine.model.source import Progress, display_name, hash_file, log, prepare, translated

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
    """What this rank keeps of a token."""
    query_heads: int
    """This rank's."""
    weights_bytes: int
    """What this rank's weights take."""
    ranks: Ranks
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    library: Library | None
    """The native kernels, where those are what serves."""
    decoder: Decoder | None
    """The model's weights for them; None where they know its attention at most."""
    flash: FlashKernel | None
    """The flash-attn package that attends, where one serves."""

    @property
    def dtype_name(self) -> str:
        return _name_of(self.dtype)

    @property
    def formats(self) -> str:
        """In words, where KV is kept otherwise than computed."""
        kv = "" if self.kv_dtype == self.dtype else f", KV in {_name_of(self.kv_dtype)}"
        return f"{self.dtype_name}{kv}"

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


def load(config: EngineConfig, progress: Progress = log.info, ranks: Ranks = ALONE) -> LoadedModel:
    """Convert if need be and load. Raises `Misconfigured` with what is wrong and the fix.

    One of several ranks loads its share, and waits until the others do.
    """
    device = ranks.device(_device(config.device))
    dtype = _dtype(config.dtype, device)
    source = prepare(config.model, config.data_dir, progress)
    progress(f"loading {source} in {_name_of(dtype)}")
    with translated(config.model):
        tokenizer = AutoTokenizer.from_pretrained(source)
        ranks.check(source)
    meshes = ranks.join(device)
    with translated(config.model):
        model = ranks.modules(
            source,
            device,
            meshes,
            dtype=dtype,
            attn_implementation=ATTENTION,
            use_safetensors=True,
        )
        folder = Path(cached_file(source, "config.json")).parent
    _check_tokenizer(config.model, tokenizer)
    text_config = model.config.get_text_config()
    context_tokens = _context_tokens(config, text_config)
    kv_dtype = FP8 if config.kv_dtype == "fp8" else dtype
    kv = _kv_shape(text_config, kv_dtype, ranks.kv_heads(model))
    model = model.eval().to(device).requires_grad_(requires_grad=False)
    # Of what several ranks share each has a part; `nbytes` is the whole's.
    parts = (getattr(weight, "_local_tensor", weight) for weight in model.parameters())
    weights_bytes = sum(part.nbytes for part in parts)
    slides = _slides(text_config, context_tokens)
    native, decoder = _native(model, config, progress, slides=slides, ranks=ranks)
    flash = _flash(config, kv, device, dtype=kv_dtype, progress=progress)
    has_groups = _take_groups(decoder, folder, config, progress)
    if decoder is None and dtype == torch.bfloat16 and device.type == "cpu" and ranks.size == 1:
        pack_linears(model)
    give_back()
    return LoadedModel(
        name=display_name(config.model),
        model=model,
        tokenizer=tokenizer,
        model_fingerprint=_model_fingerprint(folder, text_config, dtype, has_groups=has_groups),
        template_fingerprint=_template_fingerprint(tokenizer),
        context_tokens=context_tokens,
        vocabulary_tokens=text_config.vocab_size,
        eos_token_ids=_eos_token_ids(model, tokenizer),
        kv=kv,
        query_heads=_query_heads(text_config, kv),
        weights_bytes=weights_bytes,
        ranks=ranks,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        library=native,
        decoder=decoder,
        flash=flash,
    )


def _native(
    model: Any, config: EngineConfig, progress: Progress, *, slides: bool, ranks: Ranks
) -> tuple[Library | None, Decoder | None]:
    """The kernels and what they know of the model; says why, where that is not all of it."""
    kernels = None
    try:
        if config.kernels == "native" and model.device.type != "cpu":
            raise Unavailable("they run on a CPU only")
        if config.kernels in ("auto", "native") and model.device.type == "cpu":
            if ranks.size > 1:
                raise Unavailable("they know whole models only")
            if slides:
                raise Unavailable("they know no sliding windows")
            if config.kv_dtype == "fp8":
                raise Unavailable("they know no KV in fp8")
            kernels = library(config.data_dir)
            return kernels, Decoder(kernels, model)
    except Unavailable as error:
        if config.kernels == "native":
            raise Misconfigured(f"kernels is 'native': {error}; use auto or torch") from error
        part = "all but attention" if kernels else "all"
        progress(f"torch computes {part}, not the native kernels: {error}")
    return kernels, None


def _flash(
    config: EngineConfig,
    kv: KVShape,
    device: torch.device,
    *,
    dtype: torch.dtype,
    progress: Progress,
) -> FlashKernel | None:
    """The flash-attn package that serves on a GPU; says why, where none does."""
    if config.kernels not in ("auto", "flash"):
        return None
    kernel, problem = None, "they run on a GPU only"
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        kernel, problem = find_flash(Card(capability, dtype, kv.head_size, config.block_tokens))
        if kernel is None:
            progress(f"torch computes attention, no flash-attn package: {problem}")
    if kernel is None and config.kernels == "flash":
        raise Misconfigured(f"kernels is 'flash': {problem}; use auto or torch")
    return kernel


def _take_groups(
    decoder: Decoder | None, folder: Path, config: EngineConfig, progress: Progress
) -> bool:
    """Whether products, of few rows at least, are those with the file's own groups; says so."""
    if config.weights == "dtype":
        return False
    try:
        if decoder is None:
            raise NoGroups("only the native kernels know groups")
        if config.dtype == "float32":
            raise NoGroups("rows are rounded for them, and float32 was asked for")
        if config.deterministic:
            raise NoGroups("a run's numbers would depend on how many rows stand beside it")
        decoder.take_groups(groups_in(folder))
    except NoGroups as error:
        if config.weights == "file":
            raise Misconfigured(f"weights is 'file': {error}; use auto or dtype") from error
        return False
    progress(f"the file's own groups are multiplied with: {decoder.words_of_groups}")
    return True


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


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cpu_multiplies_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _context_tokens(config: EngineConfig, text_config: Any) -> int:
    """The model's own limit, or the smaller one that was asked for."""
    limit = int(text_config.max_position_embeddings)
    tokens = limit if config.context_tokens is None else config.context_tokens
    if tokens > limit:
        raise Misconfigured(f"context_tokens is {tokens}: the model allows {limit}")
    _check_attention(config.model, text_config)
    return tokens


def _check_attention(name: str, text_config: Any) -> None:
    """Raise `Misconfigured` for what is no causal attention, windowed or not.

    The runner's warm-up compares logits as well; this finds what a short prompt would not show.
    """
    problems = [
        f"{kind} layers"
        for kind in sorted(set(getattr(text_config, "layer_types", None) or ()))
        if kind not in ("full_attention", "sliding_attention")
    ]
    rope = (getattr(text_config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        problems.append(f"{rope} rotary positions, which depend on the longest sequence")
    if problems:
        raise Misconfigured(f"model {name!r} has {', '.join(problems)}: choose another model")


def _slides(text_config: Any, context_tokens: int) -> bool:
    """Whether a layer sees less than the context."""
    window = getattr(text_config, "sliding_window", None)
    kinds = getattr(text_config, "layer_types", None) or ("sliding_attention",)
    return (
        window is not None
        and window < context_tokens
        and getattr(text_config, "use_sliding_window", True)
        and "sliding_attention" in kinds
    )


def _check_tokenizer(name: str, tokenizer: Any) -> None:
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise Misconfigured(f"model {name!r} has no tokenizer.json: choose one that has")
    if not tokenizer.chat_template:
        raise Misconfigured(
            f"model {name!r} has no chat template: choose a chat model, or put chat_template.jinja "
            "into its folder"
        )


def _query_heads(text_config: Any, kv: KVShape) -> int:
    """Those that go with the KV heads of a pool."""
    heads: int = text_config.num_attention_heads
    return heads * kv.kv_heads // (getattr(text_config, "num_key_value_heads", None) or heads)


def _kv_shape(text_config: Any, dtype: torch.dtype, kv_heads: int) -> KVShape:
    heads = text_config.num_attention_heads
    return KVShape(
        layers=text_config.num_hidden_layers,
        kv_heads=kv_heads,
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


def _model_fingerprint(
    folder: Path, text_config: Any, dtype: torch.dtype, *, has_groups: bool
) -> str:
    """Equal for equal config, weights and formats that serve, wherever the folder lies."""
    digest = hashlib.blake2b(digest_size=16)
    settings = {k: v for k, v in text_config.to_dict().items() if not k.startswith("_")}
    for name in ("transformers_version", "distributed_config"):
        settings.pop(name, None)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(str(dtype).encode())
    for file in sorted(folder.glob("*.safetensors")):
        hash_file(file, digest)
    if has_groups:
        hash_file(groups_file(folder), digest)
    return digest.hexdigest()


def _template_fingerprint(tokenizer: Tokenizer) -> str:
    """Equal where the same messages become the same ids."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(tokenizer.chat_template).encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()
