"""Column types that both databases store alike, and the words that columns choose from.

Token ids are packed bytes, structs are JSON, choices are their words. Times are Advanced Alchemy's
`DateTimeUTC`: aware in Python, UTC at rest. Nothing here knows a table.
"""

# ruff: noqa: ARG002  (SQLAlchemy hands every type the dialect; these ask for none)
import enum
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from sqlalchemy import JSON, BigInteger, Dialect, LargeBinary, String, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from app.ids import ItemId

T = TypeVar("T")
E = TypeVar("E", bound=enum.StrEnum)


class AccountRole(enum.StrEnum):
    """What an account is for: members talk to the model, auditors look at figures, admins do all."""

    ADMIN = "admin"
    MEMBER = "member"
    AUDITOR = "auditor"


class KeyScope(enum.StrEnum):
    """What an API key may be used for, as far as its owner may."""

    READ = "read"
    """Look at models and at what is stored."""
    WRITE = "write"
    """Ask, stop and delete."""
    FIGURES = "figures"
    """Look at what is counted over all users."""


class AuditAct(enum.StrEnum):
    """What the audit log tells of."""

    ACCOUNT_CREATED = "account.created"
    ACCOUNT_PASSWORD = "account.password"  # noqa: S105  nobody's
    ACCOUNT_PASSWORD_LINK = "account.password_link"  # noqa: S105  nobody's
    ACCOUNT_ROLE = "account.role"
    ACCOUNT_DISABLED = "account.disabled"
    ACCOUNT_ENABLED = "account.enabled"
    ACCOUNT_REMOVED = "account.removed"
    LOGIN_FAILED = "login.failed"
    LOGIN_LOCKED = "login.locked"
    LOGIN_ENDED = "login.ended"
    INVITATION_CREATED = "invitation.created"
    INVITATION_ACCEPTED = "invitation.accepted"
    INVITATION_REVOKED = "invitation.revoked"
    IDENTITY_LINKED = "identity.linked"
    IDENTITY_UNLINKED = "identity.unlinked"
    GROUP_CREATED = "group.created"
    GROUP_RENAMED = "group.renamed"
    GROUP_DELETED = "group.deleted"
    GROUP_JOINED = "group.joined"
    GROUP_LEFT = "group.left"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    LIBRARY_PUBLISHED = "library.published"
    LIBRARY_ACCESS = "library.access"
    LIBRARY_ARCHIVED = "library.archived"
    QUOTA_SET = "quota.set"
    QUOTA_LIFTED = "quota.lifted"
    SESSION_WARMED = "session.warmed"
    SESSION_PARKED = "session.parked"
    SESSION_UNPINNED = "session.unpinned"
    SESSION_EVICTED = "session.evicted"
    FIGURES_LOOK = "figures.look"


class AuditDoor(enum.StrEnum):
    """How whoever acted came in."""

    LOGIN = "login"
    KEY = "key"
    COMMAND = "command"
    """`keepwarm admin`, by whoever may read the database's settings."""
    STRANGER = "stranger"
    """Not signed in: at the door, or with an invitation."""
    SERVER = "server"
    """Nobody: what the settings ask for, and what is due by itself."""


class Origin(enum.StrEnum):
    """Where a conversation or a response came from: the browser and terminal, or the dialect."""

    CHAT = "chat"
    API = "api"
    IMPORT = "import"
    """Of a response that a file brought: what it cost was not spent here."""


class QuotaKind(enum.StrEnum):
    """What is limited for each user."""

    REQUESTS = "requests_per_day"
    TOKENS = "tokens_per_day"
    """Computed and generated; what was found warm costs nothing."""
    GENERATIONS = "generations"
    """At once."""
    SOCKETS = "sockets"
    STORED = "stored_bytes"
    """Of texts: messages, instructions, personas and documents of one's own."""
    KEPT_WARM = "kept_warm_bytes"
    """Of KV, in conversations that are to be kept warm."""

    @property
    def is_daily(self) -> bool:
        """It begins anew with each day of UTC."""
        return self in (QuotaKind.REQUESTS, QuotaKind.TOKENS)


class ItemKind(enum.StrEnum):
    PERSONA = "persona"
    DOCUMENT = "document"


class Visibility(enum.StrEnum):
    """Who may read what the library holds. The first two are the operator's to publish."""

    EVERYBODY = "everybody"
    LISTED = "listed"
    OWNER = "owner"


class VersionRef(msgspec.Struct, frozen=True):
    """A persona or a document as it was once published; that text never changes."""

    id: ItemId
    number: int

    def __str__(self) -> str:
        return f"{self.id}@{self.number}"


def utc_now() -> datetime:
    return datetime.now(UTC)


def text_bytes(text: str | None) -> int:
    """How much of a database a text fills, as `Word` stores it."""
    return 0 if text is None else len(text.replace("\0", "\ufffd").encode())


class octets(FunctionElement[int]):  # noqa: N801  (a function in SQL)
    """The same of a stored text."""

    type = BigInteger()
    inherit_cache = True


@compiles(octets)
def _octet_length(element: octets, compiler: SQLCompiler, **given: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **given)})"


@compiles(octets, "sqlite")
def _blob_length(element: octets, compiler: SQLCompiler, **given: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **given)} AS BLOB))"


def pack(token_ids: Sequence[int]) -> bytes:
    """Four little-endian bytes a token; about a seventh of the same ids as JSON in memory."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)


class Word(TypeDecorator[str]):
    """Every string column. U+0000, which PostgreSQL cannot store, is kept as U+FFFD on both.

    It may come in any request, and from a model too. A turn's exact ids do not hang on it.
    """

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd")


class TokenIds(TypeDecorator[tuple[int, ...]]):
    """Exact token ids (law 3): `tuple[int, ...]` in Python, packed bytes at rest."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> bytes | None:
        return None if value is None else pack(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[int, ...] | None:
        return None if value is None else unpack(value)


class VersionRefs(TypeDecorator[tuple[VersionRef, ...]]):
    """References in their order as words, so that equal ones can be grouped."""

    impl = String
    cache_ok = True

    def process_bind_param(
        self, value: Sequence[VersionRef] | None, dialect: Dialect
    ) -> str | None:
        return None if value is None else " ".join(map(str, value))

    def process_result_value(
        self, value: str | None, dialect: Dialect
    ) -> tuple[VersionRef, ...] | None:
        if value is None:
            return None
        words = (word.rpartition("@") for word in value.split())
        return tuple(VersionRef(ItemId(item_id), int(number)) for item_id, _, number in words)


class KeyScopes(TypeDecorator[tuple[KeyScope, ...]]):
    """A set of scopes as words, in the order in which they are defined."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Sequence[KeyScope] | None, dialect: Dialect) -> str | None:
        return None if value is None else " ".join(one for one in KeyScope if one in value)

    def process_result_value(
        self, value: str | None, dialect: Dialect
    ) -> tuple[KeyScope, ...] | None:
        return None if value is None else tuple(KeyScope(word) for word in value.split())


class Words(TypeDecorator[tuple[str, ...]]):
    """Words in their order, as what makes them findable wants them. They are written, never read.

    FTS5 takes a text from the column, which PostgreSQL has as the `tsvector` itself. A word is made
    of letters and digits, so none has to be quoted.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(TSVECTOR() if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return None if value is None else " ".join(value)
        return " ".join(f"'{word}':{place}" for place, word in enumerate(value, 1))


class Json(TypeDecorator[T]):
    """A value of `kind` (a struct, or a dict of plain values) as a JSON column, by msgspec."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: type[T]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: T | None, dialect: Dialect) -> Any:
        return msgspec.to_builtins(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> T | None:
        return None if value is None else msgspec.convert(value, self.kind)


class Choice(TypeDecorator[E]):
    """A `StrEnum` as its word; a plain string column, so that a new word needs no migration."""

    impl = String
    cache_ok = True

    def __init__(self, kind: type[E]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: E | None, dialect: Dialect) -> str | None:
        return None if value is None else self.kind(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> E | None:
        return None if value is None else self.kind(value)
