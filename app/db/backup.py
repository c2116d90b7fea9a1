"""A whole database in one file, and back: every row of one moment, whichever database it came from.

The file is gzip, whose checksum guards it, of msgpack frames, each behind its length: a heading, rows,
an end that counts them. Tables are found by looking, so any revision can be written; a file can only
fill the tables of its own revision. It holds conversations: its owner alone may read it.
"""

import contextlib
import gzip
import json
import os
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import (
    JSON,
    Column,
    Connection,
    DateTime,
    MetaData,
    Table,
    delete,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.schema import AddConstraint, DropConstraint

from app.errors import AppError

FORMAT = "keepwarm backup 1"
_ROWS = 100
"""In a frame; one row may hold a message of a megabyte."""
_LARGEST_FRAME = 1 << 30
_LENGTH = struct.Struct("<I")
_LEFT_OUT = {"alembic_version", "message_texts"}
"""The migrations' own; and what search makes of the messages, which a start catches up with."""


class BadBackup(AppError):
    """The file is no backup, or not a whole one."""

    code = "bad_backup"


class Heading(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`revision` is the migrations' word for what the tables are."""

    format: str
    revision: str
    made_at: datetime
    columns: dict[str, tuple[str, ...]]
    """Of each table, in the order of its rows' values."""


class Rows(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    table: str
    rows: tuple[tuple[Any, ...], ...]


class End(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    rows: int


Frame = Heading | Rows | End
_decoder = msgspec.msgpack.Decoder(Frame)


def write(connection: Connection, revision: str, path: Path) -> int:
    """Write what this transaction sees to a new file, down to the disk; how many rows there are.

    Raises `AppError` where there is something already, or no room; then nothing is left behind.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise AppError(f"{path} is there already; name another file.", code="exists") from error
    except OSError as error:
        raise AppError(f"Cannot write {path}: {error.strerror}.") from error
    try:
        with open(file, "wb") as out:  # noqa: PTH123  it is open
            rows = _write(connection, revision, out)
            out.flush()
            os.fsync(file)
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise AppError(f"Cannot write {path}: {error.strerror}.") from error
        raise
    sync_folder(path.parent)
    return rows


def sync_folder(folder: Path) -> None:
    """A new or renamed file is there for good once its folder is flushed."""
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def _write(connection: Connection, revision: str, out: BinaryIO) -> int:
    tables = _tables(connection)
    heading = Heading(
        format=FORMAT,
        revision=revision,
        made_at=datetime.now(UTC),
        columns=_shape(tables),
    )
    count = 0
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0, filename="") as packed:
        _put(packed, heading)
        for table in tables:
            columns = _columns(table)
            look = select(*columns).execution_options(yield_per=_ROWS)
            for part in connection.execute(look).partitions():
                rows = tuple(tuple(map(_plain, columns, row)) for row in part)
                _put(packed, Rows(table=str(table.name), rows=rows))
                count += len(rows)
        _put(packed, End(rows=count))
    return count


def heading_of(path: Path) -> Heading:
    """What a file says of itself. Raises `BadBackup`."""
    with contextlib.closing(_frames(path)) as frames:
        return _heading(frames)


def is_empty(connection: Connection) -> bool:
    return not inspect(connection).get_table_names()


def fill(connection: Connection, path: Path) -> int:
    """Put a file's rows into tables of its revision, in place of what the migrations put there.

    Raises `BadBackup`, for a file that ends early too: the caller's transaction is to fail with it.
    """
    tables = {one.name: one for one in _tables(connection)}
    for table in reversed(tables.values()):
        connection.execute(delete(table))
    count = 0
    with contextlib.closing(_frames(path)) as frames, _unordered(connection, tables.values()):
        heading = _heading(frames)
        if heading.columns != _shape(tables.values()):
            raise BadBackup(f"{path} holds other tables than revision {heading.revision} has.")
        for frame in frames:
            if isinstance(frame, End) and frame.rows == count and next(frames, None) is None:
                return count
            if not isinstance(frame, Rows):
                break
            table = tables[frame.table]
            columns = _columns(table)
            rows = [
                {one.name: _stored(one, value) for one, value in zip(columns, row, strict=True)}
                for row in frame.rows
            ]
            connection.execute(insert(table), rows)
            count += len(rows)
    raise BadBackup(f"{path} is not whole.")


def _tables(connection: Connection) -> list[Table]:
    """What there is, each after those that it refers to; not what only an index is made of."""
    if connection.dialect.name == "sqlite":
        listed = connection.execute(text("PRAGMA table_list"))
        names = [one.name for one in listed if one.schema == "main" and one.type == "table"]
        names = [name for name in names if not name.startswith("sqlite_")]
    else:
        names = inspect(connection).get_table_names()
    found = MetaData()
    found.reflect(connection, only=[name for name in names if name not in _LEFT_OUT])
    for column in (column for table in found.sorted_tables for column in table.columns):
        if isinstance(column.type, JSON):
            column.type = JSON(none_as_null=True)
    return found.sorted_tables


def _shape(tables: Iterable[Table]) -> dict[str, tuple[str, ...]]:
    return {str(one.name): tuple(str(column.name) for column in _columns(one)) for one in tables}


def _columns(table: Table) -> list[Column[Any]]:
    """In an order that both databases share, however they came to be."""
    return sorted(table.columns, key=lambda column: column.name)


@contextlib.contextmanager
def _unordered(connection: Connection, tables: Iterable[Table]) -> Iterator[None]:
    """Let rows come before those that they refer to, and have all that is referred to in the end."""
    if connection.dialect.name == "sqlite":
        connection.execute(text("PRAGMA defer_foreign_keys = ON"))  # until the commit, which checks
        yield
        return
    keys = [key for table in tables for key in table.foreign_key_constraints]
    for key in keys:
        connection.execute(DropConstraint(key))
    yield
    for key in keys:
        connection.execute(AddConstraint(key))


def _plain(column: Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, JSON):
        return json.dumps(value)
    if isinstance(column.type, DateTime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value


def _stored(column: Column[Any], value: Any) -> Any:
    is_json = value is not None and isinstance(column.type, JSON)
    return json.loads(value) if is_json else value


def _put(out: gzip.GzipFile, frame: Frame) -> None:
    encoded = msgspec.msgpack.encode(frame)
    out.write(_LENGTH.pack(len(encoded)) + encoded)


def _heading(frames: Iterator[Frame]) -> Heading:
    first = next(frames, None)
    if not isinstance(first, Heading) or first.format != FORMAT:
        raise BadBackup("This is not a backup that this version of Keepwarm can read.")
    return first


def _frames(path: Path) -> Generator[Frame]:
    """The frames up to the end of the file, whose checksum is looked at by reading that far."""
    try:
        with gzip.open(path) as packed:
            while head := packed.read(_LENGTH.size):
                (length,) = _LENGTH.unpack(head)
                if length > _LARGEST_FRAME:
                    break
                yield _decoder.decode(packed.read(length))
    except (EOFError, gzip.BadGzipFile, zlib.error, struct.error, msgspec.DecodeError) as error:
        raise BadBackup(f"{path} is not a whole backup.") from error
    except OSError as error:
        raise BadBackup(f"Cannot read {path}: {error.strerror}.") from error
