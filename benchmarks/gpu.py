"""What Keepwarm makes of a GPU, against what the card itself can do: `make bench-gpu`.

The card's limits are measured first: products of large matrices, and copies of its memory. Then an
engine of this process: prefill against the products that it takes, decode against the bytes that it
reads, the first token of a turn behind histories and of a prompt as long that nobody has seen, many
sessions at once, and a session back from host memory. At the end the same model behind HTTP, with
vLLM in the same run where `VLLM_PYTHON` names the Python of its environment.

Without `--model` the weights are random in a realistic shape: times are a real model's, texts are not.
Where there is no GPU it says so and ends with status 2; `--small --device cpu` proves the command.
"""

import argparse
import asyncio
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from benchmarks.against import Comparison, commit, now, result_of
from benchmarks.bench import arguments, opened
from benchmarks.card import Card, Work, limits_of
from benchmarks.gpu_rows import FEW, LARGE, Amount, Bench, Row, restored
from benchmarks.load import Shape
from benchmarks.peers import Memory, keepwarm, vllm
from benchmarks.results import Result, table
from benchmarks.rows import ROWS, Sizes
from engine.api import ModelCard
from engine.config import EngineConfig
from tests.kit.random_model import random_model


class Report(msgspec.Struct, frozen=True, kw_only=True):
    card: Card
    model: str
    attention: str
    commit: str
    rows: list[Row]
    peers: Result | None = None


async def beside_peers(
    model: str, amount: Amount, memory: Memory, kept: Callable[[Comparison], Result]
) -> Result:
    """Keepwarm's server and vLLM's, interleaved, on the rows of `benchmarks.against`."""
    sizes = Sizes(
        prefills=amount.prefills,
        streams=amount.streams,
        decode_tokens=amount.decode_tokens,
        histories=amount.histories,
        colds=amount.histories,
        chats=Shape(sessions=max(amount.sessions), turns=4, concurrency=64),
        memory=memory,
    )
    folder = Path(model)
    found = [keepwarm("Keepwarm", memory, folder, f"KEEPWARM_MODEL={model}")]
    found += vllm(memory, folder, on_gpu=True)
    comparison = Comparison("1", kept)
    if len(found) > 1:
        await comparison.compare(found, sizes, ROWS)
    return kept(comparison)


def lines(rows: list[Row]) -> str:
    """A table; the share is of the card's products for prefill, of its memory's speed for decode."""
    told = ["| | size | | unit | of the card |", "| --- | ---: | ---: | --- | ---: |"]
    for row in rows:
        share = "" if row.limit is None else f"{100 * row.limit:.1f} %"
        told.append(f"| {row.name} | {row.size:,} | {row.value:,.4g} | {row.unit} | {share} |")
    return "\n".join(told)


async def of_engine(
    config: EngineConfig, amount: Amount, card: Card
) -> tuple[ModelCard, list[Row]]:
    work = Work(config.model, torch.empty(0, dtype=getattr(torch, config.dtype)).element_size())
    rows: list[Row] = []
    async with opened(config) as engine:
        about = await engine.info()
        print(f"{about.name}, attention by {about.attention}", flush=True)
        async for row in Bench(engine, amount, work, card).rows():
            rows.append(row)
            print(lines([row]).splitlines()[-1], flush=True)
    return about, rows


async def measure(options: argparse.Namespace) -> Report:
    amount = FEW if options.small else LARGE
    if options.kv_memory is not None:
        amount = msgspec.structs.replace(amount, kv_memory_bytes=options.kv_memory << 30)
    device = torch.device(options.device)
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = options.model or _random(options.data_dir, amount, dtype, options.device)
    card = limits_of(device, dtype, amount.side, amount.copied_bytes)
    print(card)
    give_back(on_gpu)
    config = EngineConfig(
        data_dir=options.data_dir,
        model=model,
        kv_memory_bytes=amount.kv_memory_bytes,
        dtype=str(dtype).removeprefix("torch."),
        device=options.device,
        kernels="auto" if on_gpu else "torch",
        step_tokens=amount.step_tokens,
        max_running=max(amount.sessions),
        disk_bytes=0,
        threads=options.threads,
    )
    about, rows = await of_engine(config, amount, card)
    give_back(on_gpu)
    rows += await restored(config, amount, about.kv_bytes_per_token)
    give_back(on_gpu)
    report = Report(
        card=card,
        model=f"{about.name}{'' if options.model else ' (random weights)'}",
        attention=about.attention,
        commit=commit(),
        rows=rows,
    )
    keep(report, options.json)
    if not on_gpu:
        return report
    date = now()

    def kept(comparison: Comparison) -> Result:
        result = result_of(comparison, vars(options), about.name, date)
        keep(msgspec.structs.replace(report, peers=result), options.json)
        return result

    slot_tokens = max(amount.histories) + 512
    slots = amount.kv_memory_bytes // (about.kv_bytes_per_token * slot_tokens)
    memory = Memory(slots=slots, slot_tokens=slot_tokens)
    return msgspec.structs.replace(report, peers=await beside_peers(model, amount, memory, kept))


def give_back(on_gpu: bool) -> None:
    """What was let go is for the next one, or for another process."""
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()


def keep(report: Report, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))


def _random(data_dir: Path, amount: Amount, dtype: torch.dtype, device: str) -> str:
    shape = "-".join(str(size) for size in amount.shape.values())
    folder = data_dir / "random" / shape
    if not (folder / "config.json").exists():
        print(f"writing random weights into {folder}", flush=True)
        random_model(folder, amount.shape, dtype=dtype, device=device)
    return str(folder)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", help="a folder; without one its weights are random")
    parser.add_argument("--kv-memory", type=int, help="GiB; 40 unless it is small")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="seconds of a tiny model")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "torch finds no CUDA device here: nothing was measured (dry run: --small --device cpu)"
        )
        return 2
    report = asyncio.run(measure(options))
    print(f"\n{report.card}; {report.model}, {report.commit}\n\n{lines(report.rows)}")
    if report.peers is not None and len(report.peers.servers) > 1:
        print(f"\n{table(report.peers)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
