"""What takes longest at a start, begun before the app itself is imported: the engine.

Holds the data folder, so that two servers never sweep each other's live turns, and opens the engine
that the settings ask for while the caller gets the rest ready. Imports neither torch nor the app.
"""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from app.errors import AppError
from app.settings import Settings
from engine.api import Engine
from engine.config import EngineConfig
from engine.connect import open_engine


@contextlib.asynccontextmanager
async def launched(
    settings: Settings, say: Callable[[str], None]
) -> AsyncIterator[Awaitable[Engine]]:
    """The engine, to be awaited; it is closed, or its opening given up, when the block ends.

    Raises `AppError` where the data folder is served already.
    """
    with _alone(settings):
        opening = asyncio.ensure_future(open_engine(engine_config(settings), settings.engine, say))
        try:
            yield opening
        finally:
            opening.cancel()
            await asyncio.wait((opening,))
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().aclose()


def engine_config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        data_dir=settings.data_dir,
        model=settings.model,
        kv_memory_bytes=settings.kv_memory_bytes,
        host_bytes=settings.park_memory_bytes,
        disk_bytes=settings.park_disk_bytes,
        deterministic=settings.deterministic,
        pinned_share=settings.pinned_share,
        pinned_share_per_user=settings.pinned_share_per_user,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        kernels=settings.kernels,
        tensor_parallel=settings.tensor_parallel,
        weights=settings.weights,
        prefix_index=settings.prefix_index,
        retention=settings.retention,
        threads=settings.threads,
    )


@contextlib.contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = (settings.data_dir / "serving.lock").open("w")
    except OSError as error:
        raise AppError(
            f"Cannot write to the folder {settings.data_dir} ({error.strerror}). Let the server's "
            "user write there, or set KEEPWARM_DATA_DIR to another folder."
        ) from error
    with held as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AppError(
                f"Another keepwarm serves {settings.data_dir} already. Stop it first, or set "
                "KEEPWARM_DATA_DIR to another folder."
            ) from error
        yield
