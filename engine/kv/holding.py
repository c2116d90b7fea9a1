"""What one sequence holds of the cache. Plain state; the cache alone changes it."""

from engine.kv.prefix import Entry, Scopes
from engine.step import BlockId, Copy, TransferId


class Holding:
    """A path's scopes, its block table, and what it waits for.

    `cached` tokens were matched at acquire, or restored; `[0, published)` is the index's as well.
    `promised` blocks more are kept free for it. What is not `durable` is never written to a disk;
    `stopped` is a turn that was cut short.
    While `restoring` the runner writes into the table's blocks, and nobody may read or free them.
    """

    __slots__ = (
        "cached",
        "copy",
        "durable",
        "entry",
        "promised",
        "published",
        "restoring",
        "scopes",
        "stopped",
        "table",
    )

    def __init__(self, scopes: Scopes, table: list[BlockId], entry: Entry) -> None:
        self.scopes = scopes
        self.table = table
        self.entry = entry
        self.cached = 0
        self.promised = 0
        self.published = 0
        self.copy: Copy | None = None
        self.durable = True
        self.stopped = False
        self.restoring: TransferId | None = None
