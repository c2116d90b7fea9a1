"""Ids and their prefixes. An id tells its kind at a glance and sorts by the time it was made."""

import secrets
import time
from typing import NewType

UserId = NewType("UserId", str)
LoginId = NewType("LoginId", str)
KeyId = NewType("KeyId", str)
InvitationId = NewType("InvitationId", str)
IdentityId = NewType("IdentityId", str)
GroupId = NewType("GroupId", str)
ItemId = NewType("ItemId", str)
"""Of whatever the library holds."""
PersonaId = NewType("PersonaId", ItemId)
DocumentId = NewType("DocumentId", ItemId)
ConversationId = NewType("ConversationId", str)
MessageId = NewType("MessageId", str)
ResponseId = NewType("ResponseId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def _stamp(at_ms: int | None = None) -> str:
    """48 bits of milliseconds and 80 random bits in Crockford's base 32, as in a ULID."""
    made_ms = time.time_ns() // 1_000_000 if at_ms is None else at_ms
    value = (made_ms << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def new_user_id() -> UserId:
    return UserId(f"user_{_stamp()}")


def new_login_id() -> LoginId:
    return LoginId(f"login_{_stamp()}")


def new_key_id() -> KeyId:
    return KeyId(f"key_{_stamp()}")


def new_invitation_id() -> InvitationId:
    return InvitationId(f"invite_{_stamp()}")


def new_identity_id() -> IdentityId:
    return IdentityId(f"identity_{_stamp()}")


def new_group_id() -> GroupId:
    return GroupId(f"group_{_stamp()}")


def new_persona_id() -> PersonaId:
    return PersonaId(ItemId(f"persona_{_stamp()}"))


def new_document_id() -> DocumentId:
    return DocumentId(ItemId(f"document_{_stamp()}"))


def new_conversation_id() -> ConversationId:
    return ConversationId(f"conv_{_stamp()}")


def new_message_id(at_ms: int | None = None) -> MessageId:
    """`at_ms`: when it was said, where that was before now."""
    return MessageId(f"msg_{_stamp(at_ms)}")


def new_response_id() -> ResponseId:
    return ResponseId(f"resp_{_stamp()}")


def new_steer_id() -> str:
    return f"steer_{_stamp()}"


def new_audit_id() -> str:
    return f"audit_{_stamp()}"


def new_request_id() -> str:
    return f"req_{_stamp()}"
