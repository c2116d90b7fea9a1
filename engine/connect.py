"""Opens an engine where it is wanted: in a process of its own, or in this one.

Imports what it opens only when it opens it, so that a program which talks to another process never
loads torch.
"""

import logging
from collections.abc import Callable
from typing import Literal

from engine.api import Engine
from engine.config import EngineConfig

log = logging.getLogger("keepwarm.engine")


async def open_engine(
    config: EngineConfig,
    mode: Literal["process", "local"] = "process",
    report: Callable[[str], None] = log.info,
) -> Engine:
    """Return when the engine is ready; `report` hears in words what it does until then.

    Raises `Misconfigured` when it cannot start as configured, `EngineLost` when it died trying.
    """
    if mode == "local":
        from engine.local import LocalEngine  # noqa: PLC0415

        return await LocalEngine.open(config, report=report)
    from engine.remote import RemoteEngine  # noqa: PLC0415

    return await RemoteEngine.open(config, report=report)
