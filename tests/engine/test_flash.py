"""Which flash-attn package serves where, and that a whole model runs through each."""

import dataclasses
import sys
from types import SimpleNamespace

import msgspec
import pytest
import torch

from engine.api import Sampling
from engine.errors import Corrupt, Misconfigured
from engine.model.flash import Card, Flash2, Flash3, Flash4, FlashKernel, find_flash
from engine.model.load import LoadedModel, load
from engine.model.runner import ModelRunner
from tests.kit.flash import flash_attn_2, flash_attn_3, flash_attn_4
from tests.kit.model import Hand, Line, encode, model_config
from tests.kit.random_model import random_model

STAND_INS = {
    "flash_attn": flash_attn_2,
    "flash_attn_interface": flash_attn_3,
    "flash_attn.cute": flash_attn_4,
}
KERNELS = (Flash2(flash_attn_2()), Flash3(flash_attn_3()), Flash4(flash_attn_4()))


def a_card(
    capability: tuple[int, int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    head_size: int = 128,
    block_tokens: int | None = None,
) -> Card:
    return Card(capability, dtype, head_size, block_tokens)


@pytest.fixture
def installed(monkeypatch):
    """Has only the named packages be there."""

    def install(*names: str) -> None:
        for name, make in STAND_INS.items():
            monkeypatch.setitem(sys.modules, name, make() if name in names else None)

    return install


@pytest.mark.parametrize(
    ("capability", "serves"),
    [
        ((7, 5), None),
        ((8, 0), "flash-attn 2"),
        ((8, 9), "flash-attn 2"),
        ((9, 0), "flash-attn 3"),
        ((10, 0), "flash-attn 4"),
        ((12, 0), "flash-attn 2"),
    ],
)
def test_of_all_packages_that_one_serves_which_was_made_for_the_card(installed, capability, serves):
    installed(*STAND_INS)

    kernel, problem = find_flash(a_card(capability))

    assert (kernel.name if kernel else None) == serves
    assert bool(problem) == (serves is None)


@pytest.mark.parametrize(
    ("there", "serves"),
    [
        (("flash_attn",), "flash-attn 2"),
        (("flash_attn.cute",), "flash-attn 4"),
        (("flash_attn", "flash_attn.cute"), "flash-attn 4"),
        ((), None),
    ],
)
def test_a_hopper_is_served_by_what_is_installed(installed, there, serves):
    installed(*there)

    kernel, problem = find_flash(a_card((9, 0)))

    assert (kernel.name if kernel else None) == serves
    assert ("flash-attn 4: it is not installed" in problem) == (serves is None)


def test_a_package_of_the_same_name_without_the_functions_is_none(installed, monkeypatch):
    installed()
    # Only the fourth is installed: its folder makes `flash_attn` a namespace with nothing in it.
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace())

    kernel, problem = find_flash(a_card((8, 0)))

    assert kernel is None
    assert "flash-attn 2: it is not installed" in problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dtype": torch.float32}, "it wants bfloat16"),
        ({"head_size": 12}, "in steps of 8"),
        ({"head_size": 512}, "heads of at most 256"),
    ],
)
def test_what_no_package_computes_is_left_to_torch(installed, changes, problem):
    installed(*STAND_INS)

    kernel, told = find_flash(a_card((9, 0), **changes))

    assert kernel is None
    assert told.count(problem) == 3


def test_the_second_reads_large_blocks_only(installed):
    installed("flash_attn")

    assert find_flash(a_card((8, 0), block_tokens=512))[0] is not None
    assert find_flash(a_card((8, 0), block_tokens=16)) == (
        None,
        "flash-attn 3: it wants compute capability 9.x; flash-attn 4: it wants compute capability "
        "9.x to 11.x; flash-attn 2: it wants blocks of 256 tokens or multiples",
    )


def test_flash_on_a_cpu_is_refused_with_the_fix():
    with pytest.raises(Misconfigured, match="kernels is 'flash': they run on a GPU only; use auto"):
        load(model_config(kernels="flash"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """In bfloat16, which is all that the packages compute, and few CPUs are quick at."""
    model = random_model(tmp_path_factory.mktemp("model"))
    config = model_config(dtype="bfloat16", kernels="torch", weights="auto")
    return load(msgspec.structs.replace(config, model=model))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_06_a_model_over_each_package_keeps_the_odds_of_its_own_attention(
    kernel: FlashKernel, small: LoadedModel
):
    loaded = small
    served = ModelRunner(dataclasses.replace(loaded, flash=kernel), model_config(dtype="bfloat16"))
    ids = encode(loaded, "Once upon a time there was a lighthouse keeper who kept bees.")
    hand, line, other = Hand(served), Line(ids, [3, 1]), Line(ids, [0, 2])

    served.warm_up()
    hand.step(line.run(tokens=6))
    hand.step(line.run(tokens=1), other.run(tokens=4))
    hand.step(line.run(tokens=1), other.run(tokens=1))
    best = hand.drawn(line.run(sampling=Sampling(temperature=0, logprobs=20)))

    assert served.attention == kernel.name
    assert served.pool.block_tokens == max(16, kernel.block_tokens)
    exact = loaded.reference_logits(ids).log_softmax(-1)
    # As in every test of bfloat16: rounding may swap two that are close, and moves none far.
    assert all(abs(logprob - float(exact[token_id])) < 0.15 for token_id, logprob in best.top[:5])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_07_a_slot_that_was_never_written_is_found_by_its_key(
    kernel: FlashKernel, small: LoadedModel
):
    loaded = small
    served = ModelRunner(dataclasses.replace(loaded, flash=kernel), model_config(dtype="bfloat16"))
    line = Line(encode(loaded, "Once upon a time there was a lighthouse."), [1], computed=2)

    with pytest.raises(Corrupt):
        Hand(served).step(line.run())
