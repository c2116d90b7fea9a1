"""What the formats that serve cost in quality: the default model against itself in float32.

bfloat16 is the model's own format, and what a CPU that multiplies it serves. Its bound: perplexity
on a fixed text within 1 %, and a greedy answer that goes another way does so only where float32
finds the two best tokens less than half a logit apart. Where a GGUF file's own groups serve, which
they do where few rows are computed, as in decoding, nothing of the weights is rounded: half of that
bound. Where many rows are multiplied as bytes the first bound holds. KV that is kept in 8 bits: perplexity within 3 % (2.0 % was measured in float32), the same half logit.
In float32 the kernels are held to rounding.
"""

import msgspec
import pytest
import torch

from engine.model.load import LoadedModel
from engine.model.runner import ModelRunner
from tests.kit.model import (
    Hand,
    Line,
    decode_together,
    encode,
    in_fp8,
    loaded_model,
    model_config,
    run_of,
)

TEXT = """The harbour of Lisse has two lights. The older one stands on the western mole and was built
of grey stone in the year of the great flood; its keeper still climbs ninety steps every evening. The
younger one is a steel mast at the end of the new pier. It needs nobody: a clock turns it on at dusk
and off at dawn, and a small battery keeps it burning when the power fails. Sailors trust the old
light more, although it is weaker. They say that a lamp which somebody has carried up by hand is a
promise, and that a lamp on a clock is only a habit. When the council wanted to close the western
mole, four hundred people signed a letter against it. The letter said nothing about safety. It said
that the keeper knows the names of the boats, that he waves, and that on foggy nights he rings the
bell even if no ship is expected, because somebody might be out there whom nobody expects. The
council read the letter twice, looked at the budget, and decided to wait another year. That was
eleven years ago. The keeper has grown old, his daughter carries the oil now, and the steel mast has
been struck by lightning three times."""

OPENINGS = (
    "The three most important things about keeping bees are",
    "Dear council, the water in the eastern well tastes of iron since last spring. We ask you",
    "def median(values):\n    values = sorted(values)\n",
)
REPLY_TOKENS = 32


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """How far perplexity may be off, in parts; how close the two best are where answers part."""

    perplexity: float
    margin: float


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A format, and at most how many rows at a time it computes here (None: all at once)."""

    dtype: str
    kernels: str
    weights: str
    piece: int | None = None
    keeps_fp8: bool = False
    """Its KV, rounded to 8 bits."""
    bound: Bound


BFLOAT16 = Bound(perplexity=0.01, margin=0.5)
GROUPS = Bound(perplexity=0.005, margin=0.25)
KV_FP8 = Bound(perplexity=0.03, margin=0.5)
FLOAT32 = Bound(perplexity=1e-4, margin=1e-3)


def logits_of(
    loaded: LoadedModel, kernels: str, ids: list[int], piece: int | None = None
) -> torch.Tensor:
    """[len(ids), vocabulary] in float32, computed `piece` rows at a time."""
    runner = ModelRunner(loaded, model_config(dtype=loaded.dtype_name, kernels=kernels))
    step = piece or len(ids)
    pieces = []
    for start in range(0, len(ids), step):
        run = run_of(ids[start : start + step], start, range(-(-len(ids) // 16)))
        pieces.append(runner._forward([run], range(len(run.token_ids))).float())
    return torch.cat(pieces)


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    return float(loss.exp())


def greedy(loaded: LoadedModel, kernels: str, prompts: list[list[int]]) -> list[list[int]]:
    """An answer to each prompt, all of them at once."""
    runner = ModelRunner(loaded, model_config(dtype=loaded.dtype_name, kernels=kernels))
    lines = [Line(ids, range(20 * at, 20 * at + 20)) for at, ids in enumerate(prompts)]
    decode_together(Hand(runner), lines, REPLY_TOKENS)
    return [line.output_ids for line in lines]


class Exact:
    """The model in float32: what each format is held to, computed once for all of them."""

    def __init__(self) -> None:
        self.loaded = loaded_model("float32", "torch", "auto")
        self.ids = encode(self.loaded, TEXT)
        self.perplexity = perplexity(self.logits(self.ids), self.ids)
        self.prompts = [encode(self.loaded, opening) for opening in OPENINGS]
        self.answers = greedy(self.loaded, "torch", self.prompts)

    def logits(self, ids: list[int]) -> torch.Tensor:
        return logits_of(self.loaded, "torch", ids)


@pytest.fixture(scope="module")
def exact() -> Exact:
    return Exact()


FORMATS = {
    "rounded": Served(dtype="bfloat16", kernels="native", weights="dtype", bound=BFLOAT16),
    "groups": Served(dtype="bfloat16", kernels="native", weights="file", piece=12, bound=GROUPS),
    "groups, token by token": Served(
        dtype="bfloat16", kernels="native", weights="file", piece=1, bound=GROUPS
    ),
    "groups, but many rows": Served(
        dtype="bfloat16", kernels="native", weights="file", bound=BFLOAT16
    ),
    "rounded, by torch": Served(dtype="bfloat16", kernels="torch", weights="dtype", bound=BFLOAT16),
    "rounded, KV in fp8": Served(
        dtype="bfloat16", kernels="torch", weights="dtype", keeps_fp8=True, bound=KV_FP8
    ),
    "float32, KV in fp8": Served(
        dtype="float32", kernels="torch", weights="auto", keeps_fp8=True, bound=KV_FP8
    ),
    "float32": Served(dtype="float32", kernels="native", weights="auto", bound=FLOAT32),
}

LONG = ("rounded, by torch", "rounded, KV in fp8", "groups, token by token")
"""Each has another beside it that is rounded alike."""


@pytest.mark.row("engine 30")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in FORMATS]
)
def test_a_serving_format_stays_within_its_bound_of_float32(exact, name):
    of, bound = FORMATS[name], FORMATS[name].bound
    kernels, served = of.kernels, loaded_model(of.dtype, of.kernels, of.weights)
    if of.keeps_fp8:
        served = in_fp8(served)

    ours = perplexity(logits_of(served, kernels, exact.ids, of.piece), exact.ids)

    assert ours == pytest.approx(exact.perplexity, rel=bound.perplexity)
    answers = greedy(served, kernels, exact.prompts)
    for prompt, expected, answer in zip(exact.prompts, exact.answers, answers, strict=True):
        parts = next((at for at in range(REPLY_TOKENS) if answer[at] != expected[at]), None)
        if parts is not None:
            seen = exact.logits(prompt + expected[:parts])[-1]
            assert float(seen.max() - seen[answer[parts]]) < bound.margin
