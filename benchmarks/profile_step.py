"""Where a decode step's time goes, in the engine alone: `python -m benchmarks.profile_step`.

Streams decode side by side in an engine of this process; only steps in which every stream draws one
token count. `plan` and `commit` are the deciding half, `forward` the model, `sampling` what is drawn
from its logits, `between` what is left until the next plan: news are handed over, and Python's lock
is waited for while the other thread writes texts. Then the same in an engine of its own process,
as a server has it, seen by who reads the tokens.

What torch did inside the forward pass is listed by kind; the rest of it is native code of our own and
Python. The floor is what reading the weights once takes at the speed at which this machine reads.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import safe_open
from torch.profiler import ProfilerActivity, profile

import engine.model.runner as running
from benchmarks.bench import arguments, turn, words
from engine.api import Delta, Engine
from engine.config import EngineConfig
from engine.connect import open_engine
from engine.local import LocalEngine
from engine.model.groups import groups_file
from engine.model.source import prepare
from engine.step import Plan

PROFILED_STEPS = 8
KINDS = {
    "products": ("linear", "mm", "matmul", "addmm"),
    "attention": ("bmm", "attention", "softmax", "sdpa"),
    "memory": ("copy", "index", "cat", "empty", "fill", "clone", "select", "slice", "view"),
}
"""Of torch's operators, by what their names hold; an earlier kind wins, `bmm` aside."""


class Step(msgspec.Struct, kw_only=True):
    """Seconds of one step, by part."""

    began_s: float
    streams: int
    plan: float = 0.0
    forward: float = 0.0
    sampling: float = 0.0
    commit: float = 0.0
    between: float = 0.0

    @property
    def total(self) -> float:
        return self.plan + self.forward + self.sampling + self.commit + self.between


class Watch:
    """Times one engine's worker. It may profile torch as well, which makes those steps slower."""

    def __init__(self, engine: LocalEngine) -> None:
        self.steps: list[Step] = []
        self.profiled_s: dict[str, float] = {}
        """Of one step, on average."""
        self.profiles_left = 0
        self._profile: profile | None = None
        self._sampling_s = 0.0
        self._step: Step | None = None
        self._ended_s = 0.0
        parts = engine._parts
        self._wrap(parts.core, "plan", self._plan)
        self._wrap(parts.core, "commit", self._commit)
        self._wrap(parts.runner, "launch", self._launch)
        self._wrap(running, "draw_tokens", self._draw)

    @staticmethod
    def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda *given: around(inner, *given))

    def _plan(self, inner: Callable[[float], Plan | None], now: float) -> Plan | None:
        began_s = time.perf_counter()
        plan = inner(now)
        ended_s = time.perf_counter()
        if self._step is not None:
            self._step.between = began_s - self._ended_s
            self.steps.append(self._step)
            self._step = None
        if plan is not None and all(len(run.token_ids) == 1 for run in plan.runs):
            self._step = Step(began_s=began_s, streams=len(plan.runs), plan=ended_s - began_s)
        return plan

    def _launch(self, inner: Callable[[Plan], Any], plan: Plan) -> Any:
        self._sampling_s = 0.0
        if self._step is None:
            return inner(plan)
        if self.profiles_left:
            self._step = None
            return self._profiled(inner, plan)
        began_s = time.perf_counter()
        handle = inner(plan)
        self._step.sampling = self._sampling_s
        self._step.forward = time.perf_counter() - began_s - self._sampling_s
        return handle

    def _profiled(self, inner: Callable[[Plan], Any], plan: Plan) -> Any:
        """Begun and ended on this thread, since it sees no other's operators."""
        if self._profile is None:
            self._profile = profile(activities=[ProfilerActivity.CPU])
            self._profile.start()
        handle = inner(plan)
        self.profiles_left -= 1
        if not self.profiles_left:
            self._profile.stop()
            self.profiled_s = _by_kind(self._profile)
            self._profile = None
        return handle

    def _draw(self, inner: Callable[..., Any], *given: Any) -> Any:
        began_s = time.perf_counter()
        drawn = inner(*given)
        self._sampling_s = time.perf_counter() - began_s
        return drawn

    def _commit(self, inner: Callable[..., Any], *given: Any) -> Any:
        began_s = time.perf_counter()
        events = inner(*given)
        self._ended_s = time.perf_counter()
        if self._step is not None:
            self._step.commit = self._ended_s - began_s
        return events


def _by_kind(profiled: profile) -> dict[str, float]:
    """Seconds that a step spends in torch's operators, without those that they call."""
    spent = dict.fromkeys([*KINDS, "elementwise and other"], 0.0)
    for row in profiled.key_averages():
        spent[_kind(row.key)] += row.self_cpu_time_total / 1e6 / PROFILED_STEPS
    return spent


def _kind(operator: str) -> str:
    if "bmm" in operator:
        return "attention"
    found = (kind for kind, parts in KINDS.items() if any(part in operator for part in parts))
    return next(found, "elementwise and other")


async def decode(engine: Engine, streams: int, history: int, tokens: int) -> list[float]:
    """Seconds between two tokens, of all streams, as their reader sees them."""

    async def stream(number: int) -> list[float]:
        job = turn(
            words(1000 * streams + number, history), session=f"{streams}-{number}", tokens=tokens
        )
        times = [time.perf_counter() async for event in engine.generate(job) if _is_token(event)]
        return [b - a for a, b in pairwise(times)]

    gaps = await asyncio.gather(*(stream(number) for number in range(streams)))
    return [gap for one in gaps for gap in one[1:]]


def _is_token(event: object) -> bool:
    return isinstance(event, Delta)


async def opened(config: EngineConfig, mode: Literal["local", "process"]) -> Engine:
    engine = await open_engine(config, mode, lambda _: None)
    await decode(engine, 2, 40, 8)
    return engine


def weight_bytes(data_dir: Path, weights_as: str) -> int:
    """What a token reads: the file's own groups, or all weights in the two bytes of bf16.

    The embedding is the head as well.
    """
    groups = groups_file(Path(prepare("default", data_dir)))
    if weights_as != "dtype" and groups.exists():
        return groups.stat().st_size
    weights = 0
    for file in Path(prepare("default", data_dir)).glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names = list(tensors.keys())
            weights += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    return 2 * weights


def read_bytes_per_s() -> float:
    """How fast all threads together read memory that no cache holds."""
    block = torch.ones(1 << 27)
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        block.sum()
        times.append(time.perf_counter() - began_s)
    return block.nbytes / min(times)


# ---------------------------------------------------------------- what is told


def tell(steps: Sequence[Step], profiled_s: Mapping[str, float], streams: int) -> None:
    total_s = statistics.median(step.total for step in steps)
    print(f"\n{streams} streams: {len(steps)} steps, {_ms(total_s)}, {streams / total_s:.0f} tok/s")
    for part in ("forward", "sampling", "plan", "commit", "between"):
        spent_s = statistics.median(getattr(step, part) for step in steps)
        print(f"  {part:<24}{_ms(spent_s)}  {spent_s / total_s:6.1%}")
    print("  torch's operators, while they are watched:")
    for kind, spent_s in profiled_s.items():
        print(f"    {kind:<22}{_ms(spent_s)}")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:8.2f} ms"


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--history", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--weights", choices=["auto", "file", "dtype"], default="auto")
    options = parser.parse_args()
    config = EngineConfig(
        data_dir=options.data_dir,
        kv_memory_bytes=512 << 20,
        disk_bytes=0,
        threads=options.threads,
        weights=options.weights,
    )
    sizes = options.history, options.tokens
    local = await opened(config, "local")
    assert isinstance(local, LocalEngine)
    watch = Watch(local)
    for streams in options.streams:
        watch.steps.clear()
        await decode(local, streams, *sizes)
        steps = [step for step in watch.steps if step.streams == streams]
        watch.profiles_left = PROFILED_STEPS
        await decode(local, streams, sizes[0], PROFILED_STEPS + 8)
        tell(steps, watch.profiled_s, streams)
    await local.aclose()
    remote = await opened(config, "process")
    for streams in options.streams:
        gap_s = statistics.median(await decode(remote, streams, *sizes))
        print(f"\n{streams} streams, in a process of its own:{_ms(gap_s)} between two tokens")
    await remote.aclose()
    weights, speed = weight_bytes(options.data_dir, options.weights), read_bytes_per_s()
    print(
        f"\nfloor: {weights / 2**20:.0f} MiB of weights at {speed / 2**30:.1f} GiB/s: "
        f"{_ms(weights / speed)}"
    )


if __name__ == "__main__":
    asyncio.run(main())
