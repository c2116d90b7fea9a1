"""Parked KV on disk: one safetensors file a segment, whole or not there.

Owns the format, the checks and the folder. A file is written under another name and renamed, and
carries what it is of: the weights' fingerprint, ids, and checksums of both its head and its KV. So
one that was cut, flipped or made with other weights is refused and deleted, never served. Refuses
to know which segments are worth keeping.

What was written is on the disk before it has its name, and its name before anybody is told; a name
that is dropped stays dropped. No answer needs that, for the checks refuse whatever a power cut may
leave: but without it a cut would lose all that was parked in the last half minute, and bring back
what was forgotten in it. It costs a segment of 6 MB 30 ms more than the 29 that it takes (ext4 on a
virtual disk), on the thread that parks, for which no step waits.

What is deleted is overwritten before, whoever it was of and why ever it goes: the bytes of a file that
is only unlinked stay on the medium until something else is written there. That takes 15 ms more on that
disk. Where a file system or a disk writes elsewhere than it was told to, the old bytes are not reached.
"""

import contextlib
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from io import FileIO
from itertools import chain
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.errors import Corrupt
from engine.step import SegmentHead

log = logging.getLogger("keepwarm.engine")

_SUFFIX = ".safetensors"
_UNFINISHED = ".part"
_REFUSED = ".refused"
# What is raised by a file that is not as it was written: by its reader, or by what stands in it.
_UNREADABLE = (
    SafetensorError,
    msgspec.MsgspecError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
    Corrupt,
)

_ZEROS = memoryview(bytes(1 << 20))

_POOLS = 4
"""How many times the pool a disk holds by default: what was said lately, and a few times as much.
With twice as much, chats of long documents push out what somebody returns to (benchmarks)."""
_LEAST_BYTES = 4 << 30
_FREE_SHARE = 10
"""By default one byte in so many that are free: the database and others write there too."""


class SegmentFiles:
    """The segments of one folder. `fingerprint`: of weights and of how KV is made from them.

    Different segments may be read and written on different threads at the same time.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.refused = 0
        """Files that were deleted because they were damaged or of other weights."""
        self._folder = folder
        self._fingerprint = fingerprint

    def heads(self) -> list[SegmentHead]:
        """What the folder holds, longest unused first; what is not ours or not whole is refused.

        KV itself is checked when it is read. Who starts waits for no disk: `clear` is for later.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        files = sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
        found = [self._head(file) for file in files]
        return [head for head in found if head is not None]

    def clear(self) -> None:
        """Delete what was refused, and what a former process left half written."""
        for file in chain(*(self._folder.glob(f"*{end}") for end in (_UNFINISHED, _REFUSED))):
            with contextlib.suppress(OSError):  # the next start tries again
                destroy(file)
        self._sync_names()

    def default_bytes(self, pool_bytes: int) -> int:
        """What the folder may take where nobody said; what it holds already counts as free."""
        self._folder.mkdir(parents=True, exist_ok=True)
        held = sum(file.stat().st_size for file in self._folder.glob(f"*{_SUFFIX}"))
        free = shutil.disk_usage(self._folder).free
        return min(max(_POOLS * pool_bytes, _LEAST_BYTES), (free + held) // _FREE_SHARE)

    def write(self, head: SegmentHead, kv: torch.Tensor) -> None:
        """Store `kv` [2, layers, tokens, kv heads, head size]. Raises `OSError`."""
        text = msgspec.json.encode(head)
        metadata = {
            "fingerprint": self._fingerprint,
            "head": text.decode(),
            "head_crc32": str(zlib.crc32(text)),
            "kv_crc32": str(_crc32(kv)),
        }
        unfinished = self._folder / f"{head.name}{_UNFINISHED}"
        try:
            save_file({"kv": kv}, unfinished, metadata)
            _sync(unfinished)
            with _overwriting(self._file(head.name)):
                unfinished.replace(self._file(head.name))
            self._sync_names()
        except SafetensorError as error:
            destroy(unfinished)
            raise OSError(str(error)) from error
        except OSError:
            destroy(unfinished)
            raise

    def read(self, name: str) -> torch.Tensor:
        """KV [2, layers, tokens, kv heads, head size]. Raises `Corrupt`, and deletes the file."""
        file = self._file(name)
        try:
            with safe_open(file, framework="pt") as opened:
                kv: torch.Tensor = opened.get_tensor("kv")
                crc32 = opened.metadata()["kv_crc32"]
            if crc32 != str(_crc32(kv)):
                raise Corrupt("its KV is damaged")
        except _UNREADABLE as error:
            self.refused += 1
            destroy(file)
            raise Corrupt(f"segment {file.name} cannot be read: {error}") from error
        with contextlib.suppress(OSError):  # it is only an order
            os.utime(file)
        return kv

    def hand_over(self, head: SegmentHead) -> None:
        """Store a segment again as another lease's.

        Where that fails it is deleted: no file outlives whose it says it is.
        """
        if not self._file(head.name).exists():  # it lies in memory, or could not be written
            return
        try:
            self.write(head, self.read(head.name))
        except (Corrupt, OSError) as error:
            log.warning("the parked segment %s is let go: %s", head.name, error)
            self.drop(head.name)

    def drop(self, name: str) -> None:
        destroy(self._file(name))
        self._sync_names()

    def _sync_names(self) -> None:
        with contextlib.suppress(OSError):  # not every file system can do that for a folder
            _sync(self._folder)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _head(self, file: Path) -> SegmentHead | None:
        try:
            with safe_open(file, framework="pt") as opened:
                metadata = opened.metadata()
                tokens = opened.get_slice("kv").get_shape()[2]
            head = self._checked(metadata)
            if (head.name, len(head.token_ids)) != (file.name.removesuffix(_SUFFIX), tokens):
                raise Corrupt("it is of other tokens than it says")
        except _UNREADABLE as error:
            log.warning("the parked segment %s is let go: %s", file.name, error)
            self.refused += 1
            file.replace(file.with_suffix(_REFUSED))
            return None
        return head

    def _checked(self, metadata: dict[str, str]) -> SegmentHead:
        text = metadata["head"].encode()
        if metadata["fingerprint"] != self._fingerprint:
            raise Corrupt("it is of other weights")
        if metadata["head_crc32"] != str(zlib.crc32(text)):
            raise Corrupt("its head is damaged")
        return msgspec.json.decode(text, type=SegmentHead)


def _sync(path: Path) -> None:
    """Wait until the disk has it. Raises `OSError`."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _overwriting(file: Path) -> Iterator[None]:
    """In the block its name goes, or becomes another's; then what it held is zeroed where it lay.

    Not before: whoever maps it may be reading it until then. What cannot be overwritten goes all the same.
    """
    with contextlib.ExitStack() as stack:
        opened = None
        with contextlib.suppress(OSError):  # there is none, or it may only be read
            opened = stack.enter_context(file.open("r+b", buffering=0))
        yield
        if opened is not None:
            with contextlib.suppress(OSError):
                _zero(opened)


def destroy(file: Path) -> None:
    """Zero a file and take its name away. Raises `OSError` where its name stays."""
    with contextlib.suppress(OSError), file.open("r+b", buffering=0) as opened:
        _zero(opened)
    file.unlink(missing_ok=True)


def _zero(opened: FileIO) -> None:
    """Wait until the disk has nothing but zeros of it. Raises `OSError`."""
    left = os.fstat(opened.fileno()).st_size
    while left > 0:
        left -= opened.write(_ZEROS[:left])
    os.fsync(opened.fileno())


def _crc32(kv: torch.Tensor) -> int:
    return zlib.crc32(kv.contiguous().view(torch.uint8).numpy().reshape(-1).data)
