"""What one sequence holds of the cache. Plain state; the cache alone changes it."""

import msgspec

from engine.kv.pins import LeaseKey
from engine.kv.prefix import Entry, Scopes
from engine.step import BlockId, Copy, TransferId


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """How a sequence gives its blocks back, as far as its subject's lease must know.

    What is not `durable` is never written to a disk; `stopped` is a turn that was cut short; what
    is not `counted` was no turn of the conversation's.
    """

    durable: bool = True
    stopped: bool = False
    counted: bool = True


A_TURN = Closing()


class Holding:
    """A path's scopes, its block table, and what it waits for.

    `cached` tokens were matched at acquire, or restored from `restored` on; `[0, published)` is the
    index's as well. `promised` blocks more are kept free for it. `closing` is said before it is
    given back. `branch`: a throw-away branch of this subject, which publishes nothing. `is_draft`: as
    long as it holds blocks, nothing above idle is let go.
    While `restoring` the runner writes into the table's blocks, and nobody may read or free them.
    """

    __slots__ = (
        "branch",
        "cached",
        "closing",
        "copy",
        "entry",
        "is_draft",
        "promised",
        "published",
        "restored",
        "restoring",
        "scopes",
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
        self.restored: int | None = None
        self.closing = A_TURN
        self.branch: LeaseKey | None = None
        self.is_draft = False
        self.restoring: TransferId | None = None
