"""The servers that are compared, each tuned as a careful user would: how it starts, what it takes.

Keepwarm and Transformers with a hand-kept cache are always there. Others are named by variables:

    LLAMA_SERVER   llama.cpp's server; with LLAMA_MODEL, one or more GGUF files (`:` between them)
    VLLM_PYTHON    the Python of an environment with vLLM's CPU build

A server that is not being measured is frozen, so that it uses no core; all end with this process.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Self

import msgspec
import psutil

from benchmarks.client import Failed, Target, ask
from benchmarks.texts import message
from engine.model.source import prepare
from tests.kit.engines import DATA_DIR
from tests.kit.server import ROOT, free_port, new_folder, run_command, server_environment

READY_S = 300.0
STOP_S = 60.0
VLLM_BLOCK_TOKENS = 32


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """KV memory, the same for everyone: so many conversations of so many tokens at most."""

    slots: int
    slot_tokens: int
    aside_mib: int = 8192
    """What llama.cpp may keep beside its slots; its default. Nobody else has a second store."""

    @property
    def tokens(self) -> int:
        return self.slots * self.slot_tokens


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is started, and where it is asked then."""

    name: str
    command: tuple[str, ...]
    target: Target
    environment: Mapping[str, str]
    folder: Path
    weights: str = "bf16"
    """What a step of few rows multiplies with: there, reading the weights is what takes time."""
    is_slow: bool = False
    """It answers one request at a time: it is measured in the first round only, and with one stream."""
    stores: bool = False
    """It can keep conversations itself."""


class Server:
    """A running server with the processes that it started."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.name = launch.name
        self.target = launch.target
        self.first_token_s = 0.0
        """From its start to the first token of its first reply."""
        with self.log.open("ab") as log:
            self._process = psutil.Popen(
                launch.command,
                cwd=ROOT,
                env=dict(launch.environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )

    @property
    def log(self) -> Path:
        return self.launch.folder / "bench.log"

    @classmethod
    async def start(cls, launch: Launch) -> Self:
        """Up when this returns. Raises `Failed` with its last words where it does not come up."""
        started_s = time.perf_counter()
        server = cls(launch)
        while server._process.poll() is None and time.perf_counter() < started_s + READY_S:
            try:
                heard = await ask(launch.target, [message("user", "Hello.")], 2)
            except (OSError, Failed):
                await asyncio.sleep(0.05)
            else:
                server.first_token_s = heard.pieces_s[0] - started_s
                return server
        await server.stop()
        raise Failed(f"{launch.name} does not start:\n{server.log.read_text()[-2000:]}")

    async def stop(self) -> None:
        family = self._family()
        self.thaw()
        self._process.terminate()
        await asyncio.to_thread(psutil.wait_procs, family, STOP_S)
        for process in family:
            if process.is_running():
                process.kill()

    def freeze(self) -> None:
        """It keeps its memory and computes nothing."""
        for process in self._family():
            process.suspend()

    def thaw(self) -> None:
        for process in self._family():
            process.resume()

    def computed_s(self) -> float:
        """Seconds of a core that it has used."""
        return sum(sum(process.cpu_times()[:2]) for process in self._family())

    def resident_mib(self) -> float:
        rss_bytes: int = sum(process.memory_info().rss for process in self._family())
        return rss_bytes / 2**20

    def peak_mib(self) -> float:
        """Most ever, of each process: an upper bound where they share pages."""
        return sum(_peak_kib(process.pid) for process in self._family()) / 1024

    def _family(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]


def busy_s() -> float:
    """Seconds of a core that anybody on this machine, or beside it, has used."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _peak_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def _die_with_parent() -> None:
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


# ---------------------------------------------------------------- who is there


def launches(memory: Memory, *settings: str) -> Iterator[Launch]:
    """Whoever is found here, prints who is not. Keepwarm is first, once for each of `settings`.

    They are variables and values with commas between them; the first may be empty.
    """
    model = Path(prepare("default", DATA_DIR))
    for at, given in enumerate(settings):
        name = f"Keepwarm {given.replace('KEEPWARM_', '')}" if at else "Keepwarm"
        yield keepwarm(name, memory, model, given)
    yield from llama(memory)
    yield from vllm(memory, model)
    yield hand_kept(memory, model)


def keepwarm(name: str, memory: Memory, model: Path, settings: str) -> Launch:
    folder, port = new_folder(), free_port()
    given = dict(one.split("=", 1) for one in settings.split(",") if one)
    run_command(folder, "migrate")
    memory_bytes = memory.tokens * _token_bytes(model)
    environment = server_environment(
        folder, port, **{"KEEPWARM_KV_MEMORY": str(memory_bytes), **given}
    )
    return Launch(
        name=name,
        command=(sys.executable, "-m", "app", "serve"),
        target=Target(url=f"http://127.0.0.1:{port}/v1", key=environment["KEEPWARM_API_KEY"]),
        environment=environment,
        folder=folder,
        weights=_weights(given),
        stores=True,
    )


def _weights(given: Mapping[str, str]) -> str:
    if given.get("KEEPWARM_DTYPE") == "float32":
        return "float32"
    return "bf16" if given.get("KEEPWARM_WEIGHTS") == "dtype" else "4-bit"


def _token_bytes(model: Path) -> int:
    """Of KV, in the two bytes a number that every server here keeps it in."""
    config = msgspec.json.decode((model / "config.json").read_bytes())
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size)


def llama(memory: Memory) -> Iterator[Launch]:
    """One for each file. It takes a stranger's slot for one's own unless most of the prompt agrees."""
    binary, files = os.environ.get("LLAMA_SERVER"), os.environ.get("LLAMA_MODEL")
    if not binary or not files:
        print("llama.cpp: skipped; LLAMA_SERVER and LLAMA_MODEL name its server and a GGUF file")
        return
    for file in files.split(":"):
        port, kind = free_port(), Path(file).stem.rsplit(".", 1)[-1]
        yield Launch(
            name=f"llama.cpp {kind}",
            weights="4-bit" if "Q4" in kind else kind.lower(),
            command=(
                binary,
                *("-m", file, "--host", "127.0.0.1", "--port", str(port), "--no-ui"),
                *("-t", str(os.cpu_count()), "-np", str(memory.slots), "-c", str(memory.tokens)),
                *("-sps", "0.9", "--cache-ram", str(memory.aside_mib)),
            ),
            target=Target(url=f"http://127.0.0.1:{port}/v1"),
            environment=os.environ,
            folder=new_folder(),
        )


def vllm(memory: Memory, model: Path, *, on_gpu: bool = False) -> Iterator[Launch]:
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        print("vLLM: skipped; VLLM_PYTHON names the Python of its environment")
        return
    port, block_tokens = free_port(), 16 if on_gpu else VLLM_BLOCK_TOKENS
    # On a GPU it shares the memory with the one that it is compared with.
    tuned = ("--gpu-memory-utilization", "0.45") if on_gpu else ("--max-num-seqs", "32")
    yield Launch(
        name="vLLM",
        command=(
            *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--served-model-name", "default", "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "bfloat16", "--max-model-len", str(memory.slot_tokens)),
            *("--block-size", str(block_tokens), *tuned),
            *("--num-gpu-blocks-override", str(memory.tokens // block_tokens)),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        ),
        target=Target(url=f"http://127.0.0.1:{port}/v1"),
        environment={
            **os.environ,
            **({} if on_gpu else _tuned_for_cpu(Path(python))),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        folder=new_folder(),
    )


def _tuned_for_cpu(python: Path) -> dict[str, str]:
    # Without the libraries it is a quarter slower; where they are not found it says so and goes on.
    libraries = [find_library("tcmalloc_minimal"), python.parents[1] / "lib/libiomp5.so"]
    return {
        "LD_PRELOAD": ":".join(str(library) for library in libraries if library),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }


def hand_kept(memory: Memory, model: Path) -> Launch:
    port = free_port()
    return Launch(
        name="Transformers",
        command=(
            *(sys.executable, "-m", "benchmarks.handkept", str(model), "--port", str(port)),
            *("--kv-tokens", str(memory.tokens)),
        ),
        target=Target(url=f"http://127.0.0.1:{port}/v1"),
        environment=os.environ,
        folder=new_folder(),
        is_slow=True,
    )
