"""What all tables are made from: their registry, which knows how ids are stored."""

from advanced_alchemy.base import CommonTableAttributes, create_registry
from sqlalchemy.orm import DeclarativeBase

from app.db.types import Word
from app.ids import (
    ConversationId,
    GroupId,
    IdentityId,
    InvitationId,
    ItemId,
    KeyId,
    LoginId,
    MessageId,
    PersonaId,
    ResponseId,
    UserId,
)

_IDS = (
    UserId,
    LoginId,
    KeyId,
    InvitationId,
    IdentityId,
    GroupId,
    ItemId,
    PersonaId,
    ConversationId,
    MessageId,
    ResponseId,
)


class Base(CommonTableAttributes, DeclarativeBase):
    registry = create_registry(dict.fromkeys((str, *_IDS), Word))
