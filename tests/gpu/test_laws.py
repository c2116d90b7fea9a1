"""The laws that are proved on a real engine, proved on a GPU.

Each file of `tests/laws` that opens one is run again with its engines there: in float32, as they are,
so torch attends. Over flash-attn, which computes in bfloat16, what can be said of all numbers is that
none comes from a slot that holds nothing.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.model.load import load
from tests.kit.engines import a_config
from tests.kit.pressure import pressed, talk_under_pressure
from tests.kit.random_model import random_model

LAWS = Path(__file__).parent.parent / "laws"
OF_ENGINES = [
    file.name
    for file in sorted(LAWS.glob("test_*.py"))
    if "from tests.kit.engines import" in file.read_text()
]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def test_a_law_leaves_the_device_to_whoever_runs_it():
    assert len(OF_ENGINES) > 5
    assert not [file for file in LAWS.glob("test_*.py") if "device=" in file.read_text()]


@needs_gpu
@pytest.mark.parametrize("laws", OF_ENGINES)
def test_laws_hold_on_a_gpu(laws):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(LAWS / laws)]
    environment = {**os.environ, "KEEPWARM_TEST_DEVICE": "cuda"}

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@needs_gpu
@pytest.mark.parametrize("block_tokens", [None, 128, 256])
async def test_07_conversations_over_flash_attn_meet_no_poison(tmp_path, block_tokens):
    config = a_config(
        model=random_model(tmp_path), device="cuda", dtype="bfloat16", block_tokens=block_tokens
    )
    flash = load(config).flash
    if flash is None:
        pytest.skip("no flash-attn package is here")
    page_tokens = block_tokens or max(16, flash.block_tokens)

    assert await talk_under_pressure(pressed(config, page_tokens)) == flash.name
