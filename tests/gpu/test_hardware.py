"""What a GPU is called, and how its memory is told."""

import pytest
import torch

from engine.model.hardware import hardware

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def test_a_gpu_tells_its_name_and_what_is_held_and_free_of_its_memory():
    kept = torch.zeros(1 << 26, dtype=torch.uint8, device="cuda")

    gpu = hardware(torch.device("cuda")).gpu

    assert gpu is not None and gpu.name
    assert kept.nbytes <= gpu.held_bytes <= gpu.total_bytes - gpu.free_bytes
