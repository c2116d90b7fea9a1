"""`keepwarm`, and on SIGUSR2 what lives in its process: `python -m tests.chaos.counted FILE serve`.

Tasks and objects are not seen from outside: it writes them to the file. Answers are short, for each
that runs has room for its longest one: in a small pool two of usual length would not run at once.
"""

import asyncio
import gc
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

from app.__main__ import main
from app.routes import conversations
from engine.api import Limits

ANSWER_TOKENS = 64


class Living(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks` by what they run; `objects` that are new since the server was ready, by their type."""

    tasks: dict[str, int]
    objects: dict[str, int]


def count(_number: int, _frame: FrameType | None) -> None:
    gc.collect()
    objects = Counter(f"{type(one).__module__}.{type(one).__name__}" for one in gc.get_objects())
    tasks = Counter(getattr(one.get_coro(), "__qualname__", "?") for one in asyncio.all_tasks())
    whole = Path(f"{FILE}.part")
    whole.write_bytes(msgspec.json.encode(Living(tasks=dict(tasks), objects=dict(objects))))
    os.replace(whole, FILE)  # noqa: PTH105  whoever waits for it finds it whole


if __name__ == "__main__":
    FILE = Path(sys.argv[1])
    signal.signal(signal.SIGUSR2, count)
    conversations.BROWSER_LIMITS = Limits(max_output_tokens=ANSWER_TOKENS)
    main(sys.argv[2:], prog_name="keepwarm")
