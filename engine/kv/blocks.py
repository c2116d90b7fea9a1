"""The pool's books: which block is free, who refers to the others, and that the sums hold.

Knows block numbers and reference counts only, and pins by owner: no tokens, no scopes, no tensors.
Upholds law 5.

A block is in exactly one state, the first that applies:

    in use    a running sequence has it in its block table
    copying   it is the source of a copy that a step has not finished yet
    pinned    the prefix index keeps it, under a lease that asked for it
    cached    the prefix index keeps it
    free      nobody refers to it
"""

import enum
from collections.abc import Iterable, Sequence

from engine.api import OwnerId
from engine.errors import Corrupt
from engine.figures import BlockCounts
from engine.step import BlockId, Wipe


class BlockState(enum.IntEnum):
    IN_USE = 0
    COPYING = 1
    PINNED = 2
    CACHED = 3
    FREE = 4


IN_USE, COPYING, PINNED, CACHED, FREE = BlockState
"""Names of this module: the books are asked for states in the inner loops."""


class FreeRuns:
    """Free places as maximal contiguous runs, found by length in constant time.

    Runs are filed by the power of two below their length; boundary tags join neighbours when a
    place comes back (Knuth, TAOCP 1, 2.5, algorithm C).
    """

    __slots__ = ("_bins", "_end_of", "_start_of", "places")

    def __init__(self, places: int) -> None:
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._bins: list[dict[int, None]] = [{} for _ in range(places.bit_length() + 1)]
        self.places = 0
        if places:
            self._file(0, places)

    def take(self, count: int, after: int | None) -> list[int]:
        """`count` places, continuing behind `after` where they are free, else in long runs.

        The caller has made sure that `count` places are free.
        """
        taken: list[int] = []
        if after is not None and after + 1 in self._end_of:
            taken += self._carve(after + 1, after + 1, count)
        while len(taken) < count:
            taken += self._carve_longest(count - len(taken))
        return taken

    def put(self, place: int) -> None:
        start, end = place, place + 1
        if end in self._end_of:
            end = self._unfile(end)
        if start in self._start_of:
            start = self._start_of[start]
            self._unfile(start)
        self._file(start, end)

    def spans(self) -> list[tuple[int, int]]:
        """Every run as `[start, end)`, in order."""
        return sorted(self._end_of.items())

    def _carve_longest(self, count: int) -> list[int]:
        start = next(iter(next(bin_ for bin_ in reversed(self._bins) if bin_)))
        length = self._end_of[start] - start
        # Half of a long run is left in front of the newcomer, so that the neighbour can grow too.
        at = start + length // 2 if length >= 4 * count else start
        return self._carve(start, at, count)

    def _carve(self, start: int, at: int, count: int) -> list[int]:
        """Take up to `count` places from `at` on, out of the run that begins at `start`."""
        end = self._unfile(start)
        stop = min(at + count, end)
        if start < at:
            self._file(start, at)
        if stop < end:
            self._file(stop, end)
        return list(range(at, stop))

    def _file(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        self._bins[(end - start).bit_length()][start] = None
        self.places += end - start

    def _unfile(self, start: int) -> int:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._bins[(end - start).bit_length()][start]
        self.places -= end - start
        return end


class BlockPool:
    """Reference counts of a fixed number of blocks.

    `order` renames the blocks (a permutation of their numbers): the books do not care which
    numbers they hand out, and law 7 is tested with it. Every block that falls free is listed for
    wiping: what somebody may delete later must not lie about where nobody looks for it.
    """

    __slots__ = (
        "_copies",
        "_counts",
        "_free",
        "_kept",
        "_name",
        "_pinned",
        "_pins",
        "_place",
        "_users",
        "_wipes",
        "_wipes_later",
        "pinned_blocks",
        "total",
    )

    def __init__(self, total: int, *, order: Sequence[int] | None = None) -> None:
        self.total = total
        self._name = [BlockId(number) for number in order or range(total)]
        self._place = {name: place for place, name in enumerate(self._name)}
        self._free = FreeRuns(total)
        self._users = [0] * total
        self._copies = [0] * total
        self._kept = [0] * total
        self._pins = [0] * total
        self._pinned: dict[OwnerId, dict[BlockId, int]] = {}
        self.pinned_blocks = 0
        self._counts = [0, 0, 0, 0, total]
        # From which slot on.
        self._wipes: dict[BlockId, int] = {}
        self._wipes_later: dict[BlockId, int] = {}

    @property
    def free_blocks(self) -> int:
        return self._free.places

    @property
    def idle_blocks(self) -> int:
        """Blocks that are kept but that no sequence and no copy needs now."""
        return self._counts[PINNED] + self._counts[CACHED]

    def counts(self) -> BlockCounts:
        in_use, copying, pinned, cached, free = self._counts
        return BlockCounts(in_use=in_use, copying=copying, pinned=pinned, cached=cached, free=free)

    def state(self, block: BlockId) -> BlockState:
        if self._users[block]:
            return IN_USE
        if self._copies[block]:
            return COPYING
        if self._pins[block]:
            return PINNED
        return CACHED if self._kept[block] else FREE

    def users(self, block: BlockId) -> int:
        """How many sequences have the block in their tables."""
        return self._users[block]

    def is_kept(self, block: BlockId) -> bool:
        """Whether the prefix index refers to the block."""
        return self._kept[block] > 0

    def busy(self, block: BlockId) -> bool:
        return bool(self._users[block] or self._copies[block])

    def allocate(self, count: int, after: BlockId | None = None) -> list[BlockId] | None:
        """`count` free blocks for one sequence, behind `after` where possible; None: too few."""
        if count > self.free_blocks:
            return None
        places = self._free.take(count, None if after is None else self._place[after])
        blocks = [self._name[place] for place in places]
        for block in blocks:
            self._users[block] = 1
        self._counts[FREE] -= count
        self._counts[IN_USE] += count
        return blocks

    def share(self, blocks: Iterable[BlockId]) -> None:
        """One more sequence has these in its block table."""
        for block in blocks:
            self._change(self._users, block, 1)

    def free(self, blocks: Iterable[BlockId]) -> None:
        """One sequence fewer; a block that nobody refers to any more falls free."""
        for block in blocks:
            self._change(self._users, block, -1)

    def keep(self, block: BlockId) -> None:
        """The prefix index refers to the block; once for each entry that holds part of it."""
        self._change(self._kept, block, 1)

    def unkeep(self, block: BlockId) -> None:
        self._change(self._kept, block, -1)

    def pin(self, block: BlockId, owner_id: OwnerId) -> None:
        """The owner pins one more entry that holds part of the block."""
        self.pinned_blocks += not self._pins[block]
        self._change(self._pins, block, 1)
        pinned = self._pinned.setdefault(owner_id, {})
        pinned[block] = pinned.get(block, 0) + 1

    def unpin(self, block: BlockId, owner_id: OwnerId) -> None:
        self._change(self._pins, block, -1)
        self.pinned_blocks -= not self._pins[block]
        pinned = self._pinned[owner_id]
        pinned[block] -= 1
        if not pinned[block]:
            del pinned[block]
        if not pinned:
            del self._pinned[owner_id]

    def pinned_by(self, owner_id: OwnerId) -> int:
        """How many different blocks the owner pins, in use or not."""
        return len(self._pinned.get(owner_id, ()))

    def begin_copy(self, source: BlockId) -> None:
        """Protect the source of a copy until the step that carries it out is committed."""
        self._change(self._copies, source, 1)

    def end_copy(self, source: BlockId) -> None:
        self._change(self._copies, source, -1)

    def wipe_behind(self, block: BlockId, slots: int) -> None:
        """Nobody can match what follows a kept block's first `slots` any more.

        It is wiped as soon as no sequence and no copy needs the block.
        """
        wipes = self._wipes_later if self.busy(block) else self._wipes
        wipes[block] = min(slots, wipes.get(block, slots))

    @property
    def wipes_wait(self) -> bool:
        return bool(self._wipes)

    def take_wipes(self) -> tuple[Wipe, ...]:
        """What to wipe before the next step does anything else; each block is named once."""
        wipes, self._wipes = self._wipes, {}
        return tuple(Wipe(block=block, behind=behind) for block, behind in wipes.items())

    def check(self, in_use: dict[BlockId, int], kept: dict[BlockId, int]) -> None:
        """Compare with what the callers know of; raises `Corrupt` where the books differ."""
        counted = [0] * len(BlockState)
        for block in self._name:
            counted[self.state(block)] += 1
            if self._users[block] != in_use.get(block, 0):
                raise Corrupt(
                    f"block {block}: {self._users[block]} users, expected {in_use.get(block, 0)}"
                )
            if self._kept[block] != kept.get(block, 0):
                raise Corrupt(
                    f"block {block}: kept {self._kept[block]}, expected {kept.get(block, 0)}"
                )
            pins = [pinned.get(block, 0) for pinned in self._pinned.values()]
            if max(pins, default=0) > self._kept[block] or sum(pins) != self._pins[block]:
                raise Corrupt(f"block {block} is pinned by entries that do not keep it")
        if counted != self._counts or sum(counted) != self.total:
            raise Corrupt(f"blocks by state are {counted}, the books say {self._counts}")
        if counted[FREE] != self._free.places:
            raise Corrupt(f"{counted[FREE]} blocks are free, the runs hold {self._free.places}")

    def _change(self, column: list[int], block: BlockId, by: int) -> None:
        count = column[block] + by
        if count < 0:
            raise Corrupt(f"block {block} was given back more often than taken")
        if count and count != by:
            # It was referred to in this way before and still is: the same state.
            column[block] = count
            return
        before = self.state(block)
        column[block] = count
        after = self.state(block)
        if before is not after:
            self._counts[before] -= 1
            self._counts[after] += 1
            if after is FREE:
                self._free.put(self._place[block])
                self._wipes[block] = 0
                self._wipes_later.pop(block, None)
            elif block in self._wipes_later and not self.busy(block):
                self.wipe_behind(block, self._wipes_later.pop(block))
