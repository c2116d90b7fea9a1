"""Builds the C++ kernels with the machine's own compiler and loads them, once a data folder.

Owns where the built library lies, what makes an old one unfit, and the C interface as Python sees
it. It refuses to know models: `engine/model/native/decoder.py` fills in the structs.

Built for the CPU it runs on, in a few seconds, into `<data>/native/<digest>.so`; the digest is over
sources, compiler and CPU, so a folder that moves to another machine is built anew there. Several
processes may race: each builds under a name of its own and renames it.
"""

import ctypes
import functools
import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("keepwarm.engine")

_SOURCES = Path(__file__).parent
_FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-fno-strict-aliasing", "-fno-math-errno"),
    *("-fPIC", "-shared", "-pthread", "-w"),
)
_BUILD_S = 120


class Unavailable(Exception):
    """There are no native kernels here; the message says why."""


class WeightFields(ctypes.Structure):
    """`Weight` of forward.h."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
        ("bits", ctypes.c_int64),
    )


class LayerFields(ctypes.Structure):
    """`Layer` of forward.h."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("qkv", WeightFields),
        ("qkv_bias", ctypes.c_void_p),
        ("output", WeightFields),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", WeightFields),
        ("down", WeightFields),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


class ModelFields(ctypes.Structure):
    """`Model` of forward.h."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerFields)),
        ("norm", ctypes.c_void_p),
        ("head", WeightFields),
        ("embedding", ctypes.c_void_p),
        ("frequencies", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in (
                *("layer_count", "width", "inner", "heads", "kv_heads", "head_size"),
                *("vocabulary", "block_tokens", "embedding_is_packed", "few_rows", "in_bytes"),
            )
        ),
        *((name, ctypes.c_float) for name in ("epsilon", "scaling", "rotary_scaling")),
    )


class RunFields(ctypes.Structure):
    """`Runs` of tasks.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ends", "starts", "table_starts", "tables")),
        ("count", ctypes.c_int64),
    )


class StepFields(ctypes.Structure):
    """`Step` of forward.h."""

    _fields_ = (
        ("runs", RunFields),
        *((name, ctypes.c_void_p) for name in ("token_ids", "draw_rows", "logits")),
        ("draws", ctypes.c_int64),
    )


class Library:
    """The functions of kernels.cpp. Pointers are plain integers; nothing is checked."""

    def __init__(self, path: Path) -> None:
        self.digest = path.stem
        """Equal where the same bits are computed."""
        library = ctypes.CDLL(str(path))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, *arguments: object, result: object = None) -> Callable[..., int]:
            found = getattr(library, name)
            found.argtypes, found.restype = arguments, result
            called: Callable[..., int] = found
            return called

        self.panel = function("keepwarm_panel", result=integer)()
        """Columns of a packed weight that lie together."""
        self.few_rows = function("keepwarm_few_rows", result=integer)()
        """Up to so many rows groups are faster, with rows of sixteen bits."""
        self.prefers_bytes = bool(function("keepwarm_prefers_bytes", result=integer)())
        """Whether more rows are multiplied faster in bytes, with groups of four bits."""
        model = ctypes.POINTER(ModelFields)
        self.open = function("keepwarm_open", model, integer, integer, result=pointer)
        self.run = function("keepwarm_run", pointer, ctypes.POINTER(StepFields))
        self.close = function("keepwarm_close", pointer)
        self.open_reader = function("keepwarm_open_reader", *[integer] * 6, result=pointer)
        runs = ctypes.POINTER(RunFields)
        self.read = function("keepwarm_read", pointer, runs, *[pointer] * 4)
        self.close_reader = function("keepwarm_close_reader", pointer)
        self.pack = function("keepwarm_pack", pointer, pointer, *[integer] * 4)
        self.linear = function("keepwarm_linear", pointer, pointer, pointer, *[integer] * 5)
        self.pack_groups = function("keepwarm_pack_groups", pointer, pointer, *[integer] * 4)
        self.linear_groups = function("keepwarm_linear_groups", *[pointer] * 3, *[integer] * 6)


@functools.cache
def library(data_dir: Path) -> Library:
    """The kernels, built if need be. Raises `Unavailable`."""
    if not ("avx512f" in _cpu() or {"avx2", "fma", "f16c"} <= set(_cpu().split())):
        raise Unavailable("the CPU has neither AVX-512 nor AVX2, without which torch is faster")
    compiler = compiler_here()
    folder = data_dir / "native"
    try:
        path = folder / f"{digest_of(compiler)}.so"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            log.info("building the native kernels with %s", compiler)
            _build(compiler, path)
        return Library(path)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        raise Unavailable(f"they could not be built: {_said(error)}") from error


def compiler_here() -> str:
    """Raises `Unavailable` where there is none."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise Unavailable("no C++ compiler is installed")
    return compiler


def _build(compiler: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *_FLAGS, str(_SOURCES / "kernels.cpp"), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_BUILD_S)  # noqa: S603
        built.rename(path)


def digest_of(compiler: str) -> str:
    """Equal where the same library would be built."""
    digest = hashlib.blake2b(digest_size=12)
    for source in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp")]):
        digest.update(source.read_bytes())
    version = subprocess.run(  # noqa: S603
        [compiler, "--version"], check=True, capture_output=True, timeout=_BUILD_S
    )
    for part in (version.stdout, " ".join(_FLAGS).encode(), _cpu().encode()):
        digest.update(part)
    return digest.hexdigest()


def _cpu() -> str:
    """What `-march=native` depends on."""
    described = Path("/proc/cpuinfo")
    kept = ("model name", "flags", "Features", "CPU part")
    lines = described.read_text().splitlines() if described.exists() else []
    found = sorted({line for line in lines if line.startswith(kept)})
    return "\n".join([*found, platform.machine(), platform.processor()])


def _said(error: Exception) -> str:
    """One line of a compiler's complaint."""
    said = (getattr(error, "stderr", None) or str(error)).strip()
    return str(said).splitlines()[0] if said else type(error).__name__
