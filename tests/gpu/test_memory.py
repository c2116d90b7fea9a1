"""The pool on a GPU: as large as what is left, and refused with the figures where nothing is."""

import msgspec
import pytest
import torch

from engine.errors import Misconfigured
from engine.model.load import load
from engine.model.runner import ModelRunner
from tests.kit.engines import a_config
from tests.kit.random_model import random_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def test_the_pool_takes_what_is_left_and_a_full_one_leaves_the_largest_step_its_room(tmp_path):
    config = a_config(
        model=random_model(tmp_path),
        device="cuda",
        dtype="bfloat16",
        kv_memory_bytes=None,
        poison=False,
    )
    runner = ModelRunner(load(config), config)
    free, whole = torch.cuda.mem_get_info()

    assert free < whole // 4
    runner._take_largest_step()
    with pytest.raises(Misconfigured, match=r"kv_memory_bytes is .* GiB: .* ask for at most"):
        ModelRunner(load(config), msgspec.structs.replace(config, kv_memory_bytes=whole))
