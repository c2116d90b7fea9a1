"""KV kept in fp8: who reads it, what becomes of it over a restart, and what it takes.

What it costs in quality is measured in `tests/engine/test_quality.py`.
"""

import msgspec
import pytest
import pytest_asyncio

from engine.api import Limits
from engine.config import EngineConfig
from engine.errors import Misconfigured
from engine.model.load import load
from tests.kit.engines import Chat, a_config, a_job, open_local, play, share_made
from tests.kit.random_model import random_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Name ten animals, and say where each of them lives. " * 8
LIMITS = Limits(max_output_tokens=20, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(tmp_path_factory) -> str:
    return random_model(tmp_path_factory.mktemp("model"))


def config_of(model: str, **changes: object) -> EngineConfig:
    config = a_config(model=model, kernels="torch", kv_memory_bytes=4 << 20)
    return msgspec.structs.replace(config, **changes)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_06_what_was_parked_in_fp8_is_restored_and_said_as_if_it_were_new(
    model, tmp_path, deterministic
):
    share_made(tmp_path)
    config = config_of(
        model,
        kv_dtype="fp8",
        data_dir=tmp_path,
        disk_bytes=1 << 30,
        deterministic=deterministic,
    )
    async with open_local(config) as engine:
        chat = Chat(engine)
        await chat.say(TEXT, limits=LIMITS)
        known = len(chat.token_ids)

    async with open_local(config) as engine:
        chat.engine = engine
        job = await chat.next_job("Any more?", limits=LIMITS)
        warm = await play(engine, job)
        about = await engine.info()
    async with open_local(config_of(model, kv_dtype="fp8", deterministic=deterministic)) as engine:
        cold = await play(engine, a_job(job.token_ids, limits=LIMITS))

    # The deterministic mode computes replies again, from a multiple of 64 tokens on.
    assert warm.receipt.cached_tokens >= (1 if deterministic else known - 1)
    assert warm.token_ids == cold.token_ids
    assert about.kv_bytes_per_token == 2 * 3 * 4 * 16
    assert about.dtype == "float32, KV in float8_e4m3fn"


async def test_a_segment_of_another_kv_format_is_foreign(model, tmp_path):
    share_made(tmp_path)
    kept = {"data_dir": tmp_path, "disk_bytes": 1 << 30}
    async with open_local(config_of(model, **kept)) as engine:
        chat = Chat(engine)
        await chat.say(TEXT, limits=LIMITS)
    assert list((tmp_path / "parked").glob("*.safetensors"))

    async with open_local(config_of(model, kv_dtype="fp8", **kept)) as engine:
        chat.engine = engine
        again = await chat.say("Any more?", limits=LIMITS)

    assert again.receipt.cached_tokens == 0


async def test_what_does_not_read_fp8_is_refused_by_name(model):
    for kernels, problem in (("native", "they know no KV in fp8"), ("flash", "on a GPU only")):
        with pytest.raises(Misconfigured, match=f"kernels is '{kernels}': .*{problem}"):
            load(a_config(model=model, kernels=kernels, kv_dtype="fp8"))


async def test_torch_serves_where_nobody_said_who(model):
    told: list[str] = []

    loaded = load(a_config(model=model, kv_dtype="fp8"), told.append)

    assert (loaded.library, loaded.decoder) == (None, None)
    assert "torch computes all, not the native kernels: they know no KV in fp8" in told
