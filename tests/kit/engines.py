"""Engines on the default model for tests: fp32, a small pool, every invariant proved at each step.

Imports no torch until a local engine is opened, so that a test may play the parent of a remote one.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.api import (
    OPERATOR_SCOPE,
    CacheSource,
    Delta,
    Engine,
    Finished,
    History,
    Job,
    JobEvent,
    JobId,
    Limits,
    Message,
    OwnerId,
    Receipt,
    RenderRequest,
    Role,
    Sampling,
    Scope,
    Seam,
    SessionId,
    Started,
    Zone,
)
from engine.config import EngineConfig
from engine.remote import Care, RemoteEngine
from tests.kit.forked import FORKED, engines_forked

if TYPE_CHECKING:
    from engine.local import LocalEngine

DATA_DIR = Path(
    os.environ.get("KEEPWARM_TEST_CACHE", Path(tempfile.gettempdir()) / "keepwarm-test-cache")
)
"""Where `tests.kit.model` has the default model converted as well."""
DEVICE = os.environ.get("KEEPWARM_TEST_DEVICE", "cpu")
"""`cuda`: what opens an engine here is proved on a GPU, as `tests/gpu/test_laws.py` has it."""
BLOCK_BYTES = 16 * 46_080
"""One block of the default model in fp32."""
GREEDY = Sampling(temperature=0.0)
PERSONA = "You are a helpful assistant who answers briefly and likes to name animals."

_numbers = itertools.count(1)


def a_config(*, blocks: int = 256, **changes: object) -> EngineConfig:
    config = EngineConfig(
        data_dir=DATA_DIR,
        dtype="float32",
        device=DEVICE,
        kv_memory_bytes=blocks * BLOCK_BYTES,
        disk_bytes=0,
        context_tokens=1024,
        step_tokens=128,
        max_running=8,
        max_waiting=16,
        checks=True,
        poison=True,
    )
    return msgspec.structs.replace(config, **changes)


def as_served(*, blocks: int = 256, **changes: Any) -> EngineConfig:
    """As `a_config`, in a format that serves: a third of the bytes, and of the time.

    In the last bits of a token's numbers is how many rows were computed with it, so a warm answer may
    part from a cold one where two tokens are as good: for tests that do not compare them.
    """
    values: dict[str, Any] = {"dtype": "bfloat16", "kv_memory_bytes": blocks * BLOCK_BYTES // 2}
    return a_config(**(values | changes))


def share_made(data_dir: Path) -> None:
    """Have a data folder of its own find the converted model and the kernels built for all tests."""
    data_dir.mkdir(parents=True, exist_ok=True)
    for name in ("models", "native"):
        (DATA_DIR / name).mkdir(parents=True, exist_ok=True)
        if not (data_dir / name).exists():
            (data_dir / name).symlink_to(DATA_DIR / name)


@contextlib.asynccontextmanager
async def open_local(
    config: EngineConfig | None = None, **options: Any
) -> AsyncIterator["LocalEngine"]:
    engine = await opened(config, **options)
    try:
        yield engine
    finally:
        await engine.aclose()


async def opened(config: EngineConfig | None = None, **options: Any) -> "LocalEngine":
    """A local engine, for who closes it."""
    from engine.local import LocalEngine  # noqa: PLC0415
    from tests.kit.loaded import keep_loaded  # noqa: PLC0415

    keep_loaded()
    return await LocalEngine.open(config or a_config(), **options)


@contextlib.asynccontextmanager
async def open_remote(
    config: EngineConfig | None = None, care: Care | None = None
) -> AsyncIterator[RemoteEngine]:
    engine = await RemoteEngine.open(config or a_config(), care=care)
    try:
        yield engine
    finally:
        await engine.aclose()


@contextlib.asynccontextmanager
async def fork_remote(
    config: EngineConfig | None = None, care: Care | None = None
) -> AsyncIterator[RemoteEngine]:
    """As `open_remote`, in a fraction of the time, for who does not ask whose child it is."""
    with engines_forked(FORKED.begin()):
        engine = await RemoteEngine.open(config or a_config(), care=care)
    try:
        yield engine
    finally:
        await engine.aclose()


def a_job(token_ids: tuple[int, ...], *, owner: str = "ann", **changes: object) -> Job:
    job = Job(
        job_id=JobId(f"job-{next(_numbers)}"),
        owner_id=OwnerId(owner),
        token_ids=token_ids,
        zones=(Zone(scope=Scope(owner), source=CacheSource.SESSION, end=len(token_ids)),),
        sampling=GREEDY,
        limits=Limits(max_output_tokens=8),
    )
    return msgspec.structs.replace(job, **changes)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that a job said."""

    events: tuple[JobEvent, ...]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last

    @property
    def started(self) -> Started:
        first = self.events[0]
        assert isinstance(first, Started)
        return first

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.finished.token_ids

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if not isinstance(event, Started))

    @property
    def sent_ids(self) -> tuple[int, ...]:
        deltas = [event for event in self.events if isinstance(event, Delta)]
        return tuple(token_id for delta in deltas for token_id in delta.token_ids)

    @property
    def receipt(self) -> Receipt:
        assert self.finished.receipt is not None
        return self.finished.receipt


async def play(engine: Engine, job: Job) -> Outcome:
    return Outcome(events=tuple([event async for event in engine.generate(job)]))


async def first_prompt(engine: Engine, text: str, *, system: str | None = None) -> tuple[int, ...]:
    """The ids of a conversation's first turn."""
    head = (Message(role=Role.SYSTEM, text=system),) if system else ()
    messages = (*head, Message(role=Role.USER, text=text))
    request = RenderRequest(messages=messages, seam=Seam.START, opens_reply=True)
    return (await engine.render(request)).token_ids


class Chat:
    """A conversation as the server keeps it: exact ids, the seam, who owns it."""

    def __init__(self, engine: Engine, *, owner: str = "ann", persona: str | None = None) -> None:
        self.engine = engine
        self.owner = owner
        self.persona = persona
        self.session_id = SessionId(f"session-{next(_numbers)}")
        self.token_ids: tuple[int, ...] = ()
        self.seam = Seam.START
        self.head: tuple[Zone, ...] = ()
        self.history: History | None = None

    def fork(self) -> "Chat":
        """The same conversation, going on elsewhere."""
        other = Chat(self.engine, owner=self.owner, persona=self.persona)
        other.token_ids, other.seam = self.token_ids, self.seam
        other.head, other.history = self.head, self.history
        return other

    async def next_job(self, text: str, *, max_tokens: int = 8, **changes: object) -> Job:
        prompt = await self._prompt(text)
        tail = Zone(scope=Scope(self.owner), source=CacheSource.SESSION, end=len(prompt))
        job = a_job(
            prompt,
            owner=self.owner,
            zones=(*self.head, tail),
            session_id=self.session_id,
            history=self.history,
            limits=Limits(max_output_tokens=max_tokens),
        )
        return msgspec.structs.replace(job, **changes)

    async def say(self, text: str, *, max_tokens: int = 8, **changes: object) -> Outcome:
        """One turn; what was said is remembered as it was."""
        job = await self.next_job(text, max_tokens=max_tokens, **changes)
        outcome = await play(self.engine, job)
        self.token_ids = job.token_ids + outcome.token_ids
        self.seam = outcome.finished.seam
        receipt = outcome.receipt
        self.history = History(
            token_ids=self.token_ids,
            model_fingerprint=receipt.model_fingerprint,
            template_fingerprint=receipt.template_fingerprint,
            boot_id=receipt.boot_id,
            head_end=self.head[-1].end if self.head else 0,
        )
        return outcome

    async def _prompt(self, text: str) -> tuple[int, ...]:
        opens = self.seam is Seam.START
        head = (Message(role=Role.SYSTEM, text=self.persona),) if opens and self.persona else ()
        messages = (*head, Message(role=Role.USER, text=text))
        request = RenderRequest(messages=messages, seam=self.seam, opens_reply=True)
        rendered = await self.engine.render(request)
        if opens:
            end = rendered.ends[0] if self.persona else rendered.opening_end
            source = CacheSource.PERSONA if self.persona else CacheSource.TEMPLATE
            self.head = (Zone(scope=OPERATOR_SCOPE, source=source, end=end),) if end else ()
        return self.token_ids + rendered.token_ids
