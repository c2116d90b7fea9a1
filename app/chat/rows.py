"""Rows and structs, both ways: views for clients, nodes for prompts, rows to be stored.

Nothing here opens a transaction or asks who owns a row.
"""

from datetime import UTC, datetime

import msgspec

from app.chat.asked import Asked
from app.chat.ledger import Node, StoredResponse
from app.db.models import Conversation, Message, Response
from app.db.types import Origin, VersionRef, utc_now
from app.events import ConversationView, MessageView, ResponseView
from app.ids import ConversationId, DocumentId, UserId


def seconds(moment: datetime) -> float:
    """Since the epoch, as clients get their times."""
    return moment.timestamp()


def moment(since_epoch_s: float) -> datetime:
    """The other way round."""
    return datetime.fromtimestamp(since_epoch_s, UTC)


def conversation_view(row: Conversation) -> ConversationView:
    return ConversationView(
        id=row.id,
        title=row.title,
        persona_id=row.persona_id,
        persona_version=row.persona_version,
        document_ids=tuple(DocumentId(ref.id) for ref in row.documents),
        leaf_id=row.leaf_id,
        created_at=seconds(row.created_at),
        updated_at=seconds(row.updated_at),
        archived=row.archived_at is not None,
        pinned=row.pinned_at is not None,
        kept_warm=row.kept_warm,
        continues_id=row.continues_id,
    )


def response_view(row: Response) -> ResponseView:
    return ResponseView(
        id=row.id,
        conversation_id=row.conversation_id,
        message_id=row.message_id,
        parent_id=row.parent_id,
        status=row.status,
        model=row.model,
        created_at=seconds(row.created_at),
        completed_at=None if row.completed_at is None else seconds(row.completed_at),
        incomplete_reason=row.incomplete_reason,
        error=row.error,
        usage=row.usage,
        receipt=row.receipt,
    )


def message_view(
    node: Node | Message, conversation_id: ConversationId, response: ResponseView | None = None
) -> MessageView:
    return MessageView(
        id=node.id,
        conversation_id=conversation_id,
        parent_id=node.parent_id,
        role=node.role,
        text=node.text,
        created_at=seconds(node.created_at),
        client_message_id=node.client_message_id,
        response=response,
    )


def stored_response(row: Response, text: str) -> StoredResponse:
    return StoredResponse(
        view=response_view(row),
        user_id=row.user_id,
        text=text,
        origin=row.origin,
        previous_response_id=row.previous_response_id,
        instructions=row.instructions,
        asked=msgspec.convert(row.request, Asked),
        store=True,
        epoch=row.epoch,
    )


def node(row: Message) -> Node:
    return Node(
        id=row.id,
        parent_id=row.parent_id,
        role=row.role,
        text=row.text,
        token_ids=row.token_ids,
        seam=row.seam,
        model_fingerprint=row.model_fingerprint,
        template_fingerprint=row.template_fingerprint,
        created_at=row.created_at,
        head_token_ids=row.head_token_ids,
        client_message_id=row.client_message_id,
    )


def new_conversation(
    conversation_id: ConversationId,
    user_id: UserId,
    *,
    origin: Origin,
    reads: tuple[VersionRef, ...],
) -> Conversation:
    """A conversation without a message, and so without a title."""
    now = utc_now()
    return Conversation(
        id=conversation_id,
        user_id=user_id,
        origin=origin,
        title="",
        provisional_title=True,
        leaf_id=None,
        created_at=now,
        updated_at=now,
        archived_at=None,
        pinned_at=None,
        kept_warm=False,
        labels=None,
        **_read_columns(reads),
    )


def set_reads(row: Conversation, reads: tuple[VersionRef, ...]) -> None:
    """From now on the conversation is under this persona, with these documents."""
    for column, value in _read_columns(reads).items():
        setattr(row, column, value)


def _read_columns(reads: tuple[VersionRef, ...]) -> dict[str, object]:
    persona = reads[0] if reads else None
    return {
        "persona_id": None if persona is None else persona.id,
        "persona_version": None if persona is None else persona.number,
        "documents": reads[1:],
    }


def reads_of(row: Conversation) -> tuple[VersionRef, ...]:
    """The persona that it is under, and the documents behind it, each at its version."""
    if row.persona_id is None or row.persona_version is None:
        return ()
    return (VersionRef(row.persona_id, row.persona_version), *row.documents)


def message_columns(one: Node, conversation_id: ConversationId) -> dict[str, object]:
    return {
        "id": one.id,
        "conversation_id": conversation_id,
        "parent_id": one.parent_id,
        "role": one.role,
        "text": one.text,
        "token_ids": one.token_ids,
        "head_token_ids": one.head_token_ids,
        "model_fingerprint": one.model_fingerprint,
        "template_fingerprint": one.template_fingerprint,
        "seam": one.seam,
        "client_message_id": one.client_message_id,
        "created_at": one.created_at,
    }


def response_columns(response: StoredResponse) -> dict[str, object]:
    view, asked = response.view, response.asked
    return {
        "id": view.id,
        "user_id": response.user_id,
        "conversation_id": view.conversation_id,
        "message_id": view.message_id,
        "parent_id": view.parent_id,
        "previous_response_id": response.previous_response_id,
        "origin": response.origin,
        "status": view.status,
        "incomplete_reason": None,
        "error": None,
        "usage": None,
        "receipt": None,
        "model": view.model,
        "instructions": response.instructions,
        "request": msgspec.to_builtins(asked),
        "epoch": response.epoch,
        "created_at": moment(view.created_at),
        "completed_at": None,
    }
