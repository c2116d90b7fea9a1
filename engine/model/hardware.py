"""The machine that an engine runs on: what it is called, and how much of its memory is free.

Read where the system tells it: Linux in `/proc`, CUDA by torch. Nothing but the processor's name is kept between two looks.
"""

import contextlib
import functools
import os
import platform
from pathlib import Path

import torch

from engine.figures import Gpu, Hardware


def hardware(device: torch.device) -> Hardware:
    """As it is now. With CUDA, `device` is the GPU of this process."""
    return Hardware(
        processor=_processor(),
        resident_bytes=_told("/proc/self/status", "VmRSS"),
        free_bytes=free_bytes(),
        machine_bytes=_pages_bytes(),
        gpu=_gpu(device) if device.type == "cuda" else None,
    )


def free_bytes() -> int:
    """What programs can still have of the machine's memory."""
    available = _told("/proc/meminfo", "MemAvailable")
    return _pages_bytes() if available is None else available


def _gpu(device: torch.device) -> Gpu:
    free, total = torch.cuda.mem_get_info(device)
    return Gpu(
        name=torch.cuda.get_device_name(device),
        held_bytes=torch.cuda.memory_reserved(device),
        free_bytes=free,
        total_bytes=total,
    )


def _pages_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _told(file: str, name: str) -> int | None:
    """Bytes, of a line like `name: 12 kB`; None where the system has no such file."""
    with contextlib.suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


@functools.cache
def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
