"""The tables of the library: personas and documents, their versions, and who may read them."""

from datetime import datetime

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.db.registry import Base
from app.db.types import Choice, ItemKind, Json, TokenIds, Visibility
from app.ids import DocumentId, GroupId, ItemId, UserId
from engine.api import Message as Said


class LibraryItem(Base):
    """A persona or a document; what it says is in its versions."""

    __tablename__ = "library_items"

    id: Mapped[ItemId] = mapped_column(primary_key=True)
    kind: Mapped[ItemKind] = mapped_column(Choice(ItemKind))
    owner_id: Mapped[UserId | None] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    """None: the operator's. An owner's own is read by nobody else."""
    visibility: Mapped[Visibility] = mapped_column(Choice(Visibility))
    newest: Mapped[int]
    """The version that new conversations take."""
    created_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]
    """Since then no new conversation takes it; those that have it go on."""


class LibraryVersion(Base):
    """What an item says, for good; only what it was compiled to is written again."""

    __tablename__ = "library_versions"

    item_id: Mapped[ItemId] = mapped_column(
        ForeignKey("library_items.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    text: Mapped[str]
    """A persona's instructions, a document's text."""
    examples: Mapped[tuple[Said, ...]] = mapped_column(Json(tuple[Said, ...]))
    document_ids: Mapped[tuple[DocumentId, ...]] = mapped_column(Json(tuple[DocumentId, ...]))
    """Of a persona: the documents that come with it, each at its newest version."""
    built_in: Mapped[bool]
    """Written by the program, whose next release may follow it with another."""
    created_at: Mapped[datetime]
    token_ids: Mapped[tuple[int, ...] | None] = mapped_column(TokenIds)
    """Compiled (law 3); None until it is first read."""
    opening_end: Mapped[int | None]
    model_fingerprint: Mapped[str | None]
    template_fingerprint: Mapped[str | None]
    """What it was compiled with; with another it is compiled again."""


class LibraryReader(Base):
    """Who may read a listed item."""

    __tablename__ = "library_readers"

    item_id: Mapped[ItemId] = mapped_column(
        ForeignKey("library_items.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class LibraryGroupReader(Base):
    """Whose members may read a listed item."""

    __tablename__ = "library_group_readers"

    item_id: Mapped[ItemId] = mapped_column(
        ForeignKey("library_items.id", ondelete="CASCADE"), primary_key=True
    )
    group_id: Mapped[GroupId] = mapped_column(
        ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True, index=True
    )
