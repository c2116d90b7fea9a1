"""Weights in the groups of a GGUF file: the file's own numbers, multiplied as such, or not at all."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.api import Sampling
from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.model.groups import BLOCK_BYTES, GROUP, NoGroups, groups_in, keep_groups
from engine.model.load import load
from engine.model.native.decoder import Decoder
from engine.model.native.grouped import Groups
from engine.model.native.library import library
from engine.model.native.panels import PackedWeights
from engine.model.pool import KVShape, Pool
from engine.model.runner import ModelRunner
from engine.model.source import prepare
from engine.step import Run
from tests.engine.test_native import SMALL, TEXT, fields
from tests.kit.model import Hand, Line, encode, loaded_model, model_cache, model_config, run_of

KINDS = {4: gguf.GGMLQuantizationType.Q4_1, 8: gguf.GGMLQuantizationType.Q8_0}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def grouped(columns: int, width: int, bits: int, *, weights: int = 1) -> list[Any]:
    """`weights` of them side by side: of each the groups, and the numbers in float64."""
    kernels = library(model_cache())
    generator = np.random.default_rng(columns + width)
    numbers = [generator.normal(size=(columns, width)).astype(np.float32) for _ in range(weights)]
    blocks = [gguf.quantize(one, KINDS[bits]) for one in numbers]
    packed = PackedWeights(kernels, torch.float32, weights * (columns + 32) * width)
    panels = packed.add(*(torch.from_numpy(one) for one in numbers), interleaved=weights > 1)
    panel_bytes = kernels.panel * width // GROUP * BLOCK_BYTES[bits]
    room = torch.zeros(-(-columns // kernels.panel) * weights * panel_bytes + 64, dtype=torch.uint8)
    room = room[-room.data_ptr() % 64 :]
    found = []
    for at, (block, like) in enumerate(zip(blocks, panels, strict=True)):
        groups = Groups(kernels, room[at * panel_bytes :], bits=bits, like=like)
        groups.fill(torch.from_numpy(block))
        exact = torch.from_numpy(gguf.dequantize(block, KINDS[bits])).double()
        found.append((groups, exact))
    return found


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "width"), [(64, 96), (39, 32), (576, 1536)])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 12, 23])
def test_a_product_with_groups_is_that_of_the_files_numbers(rows, columns, width, bits):
    ((groups, exact),) = grouped(columns, width, bits)
    given = torch.randn((rows, width), generator=torch.Generator().manual_seed(rows))
    given[:, :3] *= 300

    product = groups.product(given).double()

    expected = given.double() @ exact.T
    error = (product - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) < 1e-4  # bfloat16 would leave ten times it


@pytest.mark.parametrize(("columns", "width"), [(64, 96), (39, 32), (576, 1536)])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 9, 12, 23])
def test_a_product_in_bytes_is_near_that_of_the_files_numbers(rows, columns, width):
    ((groups, exact),) = grouped(columns, width, 4)
    given = torch.randn((rows, width), generator=torch.Generator().manual_seed(rows))

    product = groups.product(given, row_bits=8).double()

    expected = given.double() @ exact.T
    error = (product - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) < 2e-2


def test_the_largest_digits_of_a_group_are_added_up_in_bytes():
    ((groups, exact),) = grouped(64, 64, 4)
    given = torch.full((3, 64), 127.0)
    given[1] = -127.0

    for row_bits in (8, 16):
        product = groups.product(given, row_bits).double()
        torch.testing.assert_close(product, given.double() @ exact.T, atol=0.02, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_two_weights_lie_in_turn_as_their_panels_do(bits):
    given = torch.randn((3, 96), generator=torch.Generator().manual_seed(1))

    for groups, exact in grouped(64, 96, bits, weights=2):
        torch.testing.assert_close(
            groups.product(given).double(), given.double() @ exact.T, atol=1e-3, rtol=1e-4
        )


@pytest.mark.parametrize(("bits", "row_bits"), [(4, 16), (8, 16), (4, 8)])
def test_rows_of_any_size_are_kept_and_what_is_no_number_stays_none(bits, row_bits):
    ((groups, exact),) = grouped(64, 64, bits)
    given = torch.zeros((5, 64))
    given[1], given[2, 40], given[3, 7] = 1e30, float("nan"), float("inf")
    given[4] = 1e-20

    product = groups.product(given, row_bits)

    assert bool((product[0] == 0).all())
    assert bool(product[2:4].isnan().all())
    for row in (1, 4):
        expected = given[row].double() @ exact.T
        error = (product[row].double() - expected).norm() / expected.norm()
        assert float(error) < 1e-4


def test_06_few_rows_and_many_are_the_same_bits_in_any_company_and_on_any_threads():
    loaded = loaded_model("bfloat16", "native")
    few = library(model_cache()).few_rows
    ids = encode(loaded, TEXT)
    passes = []
    for threads in (1, 3):
        runner = ModelRunner(loaded, model_config(dtype="bfloat16"))
        assert loaded.decoder is not None
        passes.append((runner, loaded.decoder.over(runner.pool, threads)))
    (_, alone), (_, together) = passes

    def runs_of(start: int, tokens: int, count: int) -> list[Run]:
        return [
            run_of(ids[at + start : at + start + tokens], start, range(at * 4, at * 4 + 4))
            for at in range(count)
        ]

    for run in runs_of(0, 4, few):
        for one in (alone, together):
            one.logits([run], [])
    for tokens, count in ((4, 3), (1, few), (2, 5), (few + 1, 2)):
        runs = runs_of(4, tokens, count)
        ends = [(at + 1) * tokens - 1 for at in range(count)]
        apart = [alone.logits([run], [tokens - 1]) for run in runs]
        assert torch.equal(together.logits(runs, ends), torch.cat(apart))


# ---------------------------------------------------------------- what serves


def test_06_kv_of_single_steps_and_of_one_long_one_keeps_the_odds():
    loaded = loaded_model("bfloat16", "native")
    exact = loaded_model(kernels="torch")
    ids = encode(loaded, TEXT)
    steps, whole = (Hand(ModelRunner(loaded, model_config(dtype="bfloat16"))) for _ in range(2))
    apart, together = Line(ids, range(20)), Line(ids, range(20))
    for _ in range(len(ids) - 1):
        steps.step(apart.run(tokens=1))
    whole.step(together.run(tokens=len(ids) - 1))

    found = [
        hand.drawn(line.run(sampling=Sampling(temperature=0, logprobs=20)))
        for hand, line in ((steps, apart), (whole, together))
    ]

    odds = exact.reference_logits(ids).log_softmax(-1)
    for best in found:
        assert all(abs(logprob - float(odds[token])) < 0.15 for token, logprob in best.top[:5])
    ours, theirs = (dict(best.top[:10]) for best in found)
    assert all(abs(ours[token] - theirs[token]) < 0.1 for token in ours.keys() & theirs.keys())


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_groups_serve_where_float32_is_not_asked_for_and_change_what_the_model_is_called(dtype):
    with_groups, without = (
        load(model_config(dtype=dtype, weights=weights)) for weights in ("auto", "dtype")
    )

    differ = with_groups.model_fingerprint != without.model_fingerprint
    assert differ is (dtype != "float32")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float32"}, "rows are rounded for them, and float32 was asked for"),
        ({"kernels": "torch"}, "only the native kernels know groups"),
        ({"deterministic": True}, "would depend on how many rows stand beside it"),
    ],
)
def test_where_groups_cannot_serve_asking_for_them_is_told_why(changes, reason):
    wished = fields(model_config(dtype="bfloat16", weights="file")) | changes

    with pytest.raises(Misconfigured, match=f"weights is 'file': .*{reason}.*; use auto or dtype"):
        load(EngineConfig(**wished))
    with pytest.raises(Misconfigured, match="weights is 'four'"):
        model_config(weights="four")


def test_groups_that_are_not_those_of_all_weights_are_refused_and_nothing_changes():
    loaded = loaded_model("bfloat16", "native", "dtype")
    decoder = loaded.decoder
    assert isinstance(decoder, Decoder)
    blocks = groups_in(Path(prepare("default", model_cache())))
    name, other = (f"model.layers.{at}.mlp.down_proj.weight" for at in (7, 8))
    broken = {
        "differ from its weights": {**blocks, name: blocks[other]},
        "whole groups of 32": {**blocks, name: blocks[name][:, :-3].contiguous()},
        "lm_head.weight does not come": {k: v for k, v in blocks.items() if "head" not in k},
        "digits of different sizes": {
            **blocks,
            name.replace("down", "up"): torch.zeros((1536, 576 // GROUP * BLOCK_BYTES[8])).byte(),
        },
    }

    for reason, given in broken.items():
        with pytest.raises(NoGroups, match=reason):
            decoder.take_groups(given)
        assert decoder._fields["few_rows"] == 0


# ---------------------------------------------------------------- what is kept


def test_what_is_kept_are_the_numbers_that_the_converted_model_has():
    exact = load(model_config(kernels="torch"))

    for name, blocks in groups_in(Path(prepare("default", model_cache()))).items():
        weight = exact.model.get_parameter(name).detach()
        bits = 4 if blocks.shape[1] * GROUP == weight.shape[1] * BLOCK_BYTES[4] else 8
        assert torch.equal(torch.from_numpy(gguf.dequantize(blocks.numpy(), KINDS[bits])), weight)


def quantised(path: Path, model: Any, kinds: dict[str, Any]) -> gguf.GGUFReader:
    """A file of the model's weights in 4 bits, or as `kinds` says; the model takes its numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    named = {
        f"model.layers.{at}.{ours}.weight": f"blk.{at}.{theirs}.weight"
        for at in range(model.config.num_hidden_layers)
        for ours, theirs in NAMES.items()
    }
    for ours, theirs in (named | {"lm_head.weight": "output.weight"}).items():
        weight = model.get_parameter(ours)
        kind = kinds.get(theirs, gguf.GGMLQuantizationType.Q4_0)
        blocks = gguf.quantize(weight.detach().numpy(), kind)
        weight.data = torch.from_numpy(gguf.dequantize(blocks, kind))
        writer.add_tensor(theirs, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.GGUFReader(path)


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(5)
    return LlamaForCausalLM(LlamaConfig(**SMALL)).eval()


def test_a_file_in_q4_0_serves_with_its_own_numbers(tmp_path, model):
    reader = quantised(tmp_path / "file.gguf", model, {})
    ids = torch.tensor([encode(loaded_model(), TEXT)[:12]])
    with torch.inference_mode():
        expected = model(input_ids=ids).logits[0]

    keep_groups(reader, model, tmp_path)
    decoder = Decoder(library(model_cache()), model.to(torch.bfloat16))
    decoder.take_groups(groups_in(tmp_path))
    shape = KVShape(layers=3, kv_heads=2, head_size=64, dtype_bytes=2)
    pool = Pool(shape, blocks=1, block_tokens=16, dtype=torch.bfloat16, device=torch.device("cpu"))
    run = run_of(ids[0].tolist(), 0, [0])
    logits = decoder.over(pool, 1).logits([run], range(12))

    assert float((logits - expected).norm() / expected.norm()) < 5e-3


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q5_0])
def test_a_file_in_which_one_weight_is_in_another_format_keeps_none(tmp_path, model, kind):
    reader = quantised(tmp_path / "file.gguf", model, {"blk.1.ffn_up.weight": kind})

    with pytest.raises(NoGroups, match=f"blk.1.ffn_up.weight is in {kind.name}"):
        keep_groups(reader, model, tmp_path)
    with pytest.raises(NoGroups, match="comes from no GGUF file"):
        groups_in(tmp_path)


def test_groups_of_another_model_are_not_kept(tmp_path, model):
    reader = quantised(tmp_path / "file.gguf", model, {})
    torch.nn.init.normal_(model.model.layers[2].self_attn.k_proj.weight)

    with pytest.raises(NoGroups, match=r"blk.2.attn_k.weight has other numbers than the model"):
        keep_groups(reader, model, tmp_path)


def test_a_damaged_file_of_groups_is_told(tmp_path, model):
    keep_groups(quantised(tmp_path / "file.gguf", model, {}), model, tmp_path)
    path = tmp_path / "model.groups"
    path.write_bytes(path.read_bytes()[:1000])

    with pytest.raises(NoGroups, match="is damaged"):
        groups_in(tmp_path)
