"""Reads what conversations come in by: our own archives, and ChatGPT's export. PURE.

    ours      app.chat.archive, one JSON object
    ChatGPT   `conversations.json`, a list of trees, by itself or in the ZIP file it is sent in

Both become `SavedConversation`s whose trees hold together. What is not said to or by a person (tool
calls, hidden instructions) is left out, and what stood below it moves up. It runs in a process of its
own (`apart`); limits are on what is unpacked, not on what was sent.
"""

import io
import itertools
import re
import zipfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from app.chat.archive import Archive, SavedConversation, SavedMessage, SavedResponse
from app.chat.asked import Asked
from app.errors import InvalidRequest
from app.events import ResponseStatus
from app.ids import ConversationId, MessageId, ResponseId
from engine.api import Limits, Role, Sampling

LARGEST_UNPACKED = 128 * 2**20
MOST_CONVERSATIONS = 10_000
MOST_MESSAGES = 20_000
"""Of one conversation."""
LONGEST_TITLE = 200

_MEMBER = re.compile(r"(.*/)?conversations(-\d+)?\.json")
_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")


def work(data: bytes, _: str) -> Iterator[bytes]:
    """For `apart`: each conversation as JSON. Raises `InvalidRequest`; then none was yielded."""
    found = list(itertools.islice(read(data), MOST_CONVERSATIONS + 1))
    if len(found) > MOST_CONVERSATIONS:
        raise InvalidRequest(
            f"A file has at most {MOST_CONVERSATIONS} conversations.", code="file_too_large"
        )
    if not found:
        raise InvalidRequest(
            "There is no conversation in this file.", code="file_without_conversations"
        )
    yield from map(msgspec.json.encode, found)


def read(data: bytes) -> Iterator[SavedConversation]:
    """Raises `InvalidRequest`, perhaps after some were yielded."""
    for text in _unpacked(data):
        for place, one in enumerate(_conversations(text)):
            yield _checked(one, f"conversations[{place}]")


def _unpacked(data: bytes) -> Iterator[bytes]:
    if not data.startswith(b"PK\3\4"):
        yield data
        return
    left = LARGEST_UNPACKED
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            members = [one for one in packed.infolist() if _MEMBER.fullmatch(one.filename)]
            for member in members:
                with packed.open(member) as file:
                    text = file.read(left + 1)
                left -= len(text)
                if left < 0:
                    raise InvalidRequest(
                        f"Unpacked, this file is longer than {LARGEST_UNPACKED // 2**20} MiB.",
                        code="file_too_large",
                    )
                yield text
    except (InvalidRequest, MemoryError):
        raise
    except Exception as error:  # zipfile raises whatever a damaged file leads to
        raise InvalidRequest(
            "This ZIP file is damaged, or packed in a way that is not known here.",
            code="file_damaged",
        ) from error


def _conversations(text: bytes) -> Iterable[SavedConversation]:
    try:
        if text.lstrip()[:1] == b"[":
            return map(_from_chatgpt, msgspec.json.decode(text, type=list[GptConversation]))
        return msgspec.json.decode(text, type=Archive).conversations
    except msgspec.ValidationError as error:
        words, path = str(error), _PATH.search(str(error))
        raise InvalidRequest(
            f"This is no export of Keepwarm's or ChatGPT's: {words}.",
            code="file_foreign",
            field=path["path"] if path else None,
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("This file is not JSON, or not whole.", code="file_damaged") from error


# ---------------------------------------------------------------- trees that hold together


def _checked(saved: SavedConversation, place: str) -> SavedConversation:
    """The same, in order and without instructions. Raises `InvalidRequest` where it is no tree."""
    messages = {one.id: one for one in saved.messages}
    if len(saved.messages) > MOST_MESSAGES:
        raise InvalidRequest(
            f"A conversation has at most {MOST_MESSAGES} messages.",
            code="file_too_large",
            field=f"{place}.messages",
        )
    sent = [one.client_message_id for one in saved.messages if one.client_message_id is not None]
    written = [one.response.id for one in saved.messages if one.response is not None]
    if any(len({*ids}) < len(ids) for ids in ([one.id for one in saved.messages], sent, written)):
        raise InvalidRequest(
            "Two messages have the same id.", code="file_damaged", field=f"{place}.messages"
        )
    parents = {one.id: one.parent_id for one in saved.messages}
    spoken = {one.id for one in saved.messages if one.role is not Role.SYSTEM}
    ordered, nearest = _grown(parents, spoken)
    if len(ordered) < len(messages):
        raise InvalidRequest(
            "A message's parent is missing, or stands below it.",
            code="file_damaged",
            field=f"{place}.messages",
        )
    return msgspec.structs.replace(
        saved,
        title=" ".join(saved.title.split())[:LONGEST_TITLE],
        leaf_id=nearest.get(saved.leaf_id),
        messages=tuple(
            msgspec.structs.replace(messages[one], parent_id=nearest.get(parents[one]))
            for one in ordered
            if one in spoken
        ),
    )


def _grown(
    parents: Mapping[MessageId, MessageId | None], kept: Container[MessageId]
) -> tuple[list[MessageId], dict[MessageId | None, MessageId | None]]:
    """All that hangs on a root, parents first; and for each the nearest kept one, from it upwards."""
    below: dict[MessageId | None, list[MessageId]] = {}
    for one, parent_id in parents.items():
        below.setdefault(parent_id, []).append(one)
    ordered: list[MessageId] = []
    nearest: dict[MessageId | None, MessageId | None] = {None: None}
    waiting = below.get(None, [])[::-1]
    while waiting:
        one = waiting.pop()
        ordered.append(one)
        nearest[one] = one if one in kept else nearest[parents[one]]
        waiting += below.get(one, [])[::-1]
    return ordered, nearest


# ---------------------------------------------------------------- ChatGPT


class GptAuthor(msgspec.Struct, frozen=True):
    role: str = ""


class GptContent(msgspec.Struct, frozen=True):
    content_type: str = ""
    parts: tuple[object, ...] | None = None


class GptMetadata(msgspec.Struct, frozen=True):
    model_slug: str | None = None
    is_visually_hidden_from_conversation: bool | None = None


class GptMessage(msgspec.Struct, frozen=True):
    author: GptAuthor = GptAuthor()
    content: GptContent = GptContent()
    metadata: GptMetadata | None = None
    create_time: float | None = None
    recipient: str | None = None
    """`all`, or the tool that an assistant's message is for."""


class GptNode(msgspec.Struct, frozen=True):
    message: GptMessage | None = None
    parent: str | None = None
    children: tuple[str, ...] = ()


class GptConversation(msgspec.Struct, frozen=True):
    mapping: dict[str, GptNode]
    title: str | None = None
    create_time: float | None = None
    update_time: float | None = None
    current_node: str | None = None


class _Said(msgspec.Struct, frozen=True):
    role: Role
    text: str
    created_at: float
    model: str


def _from_chatgpt(tree: GptConversation) -> SavedConversation:
    """What one wrote, or was told, in several parts of one turn (between tool calls) is one message."""
    said = {
        MessageId(key): words
        for key, node in tree.mapping.items()
        if node.message is not None and (words := _said(node.message, tree.create_time or 0.0))
    }
    parents = _parents(tree)
    ordered, nearest = _grown(parents, said)
    above = {one: nearest[parents[one]] for one in ordered if one in said}
    alternatives = Counter(above.values())
    joined: dict[MessageId | None, MessageId | None] = {None: None}
    texts: dict[MessageId, list[str]] = {}
    below: dict[MessageId, MessageId | None] = {}
    for one, parent_id in above.items():
        onto = joined[parent_id]
        goes_on = onto is not None and said[onto].role is said[one].role
        if onto is not None and goes_on and alternatives[parent_id] == 1:
            joined[one] = onto
            texts[onto].append(said[one].text)
        else:
            joined[one] = one
            texts[one] = [said[one].text]
            below[one] = onto
    leaf = nearest.get(None if tree.current_node is None else MessageId(tree.current_node))
    return SavedConversation(
        id=ConversationId("chatgpt"),
        title=tree.title or "",
        reads=(),
        leaf_id=joined[leaf],
        created_at=max(0.0, tree.create_time or 0.0),
        updated_at=max(0.0, tree.update_time or tree.create_time or 0.0),
        messages=tuple(
            _message(one, parent_id, said[one], "\n\n".join(texts[one]))
            for one, parent_id in below.items()
        ),
    )


def _parents(tree: GptConversation) -> dict[MessageId, MessageId | None]:
    """Siblings in the order of their parent's list; who has an unknown parent is a root."""
    rank = {one: place for node in tree.mapping.values() for place, one in enumerate(node.children)}
    parents: dict[MessageId, MessageId | None] = {}
    for key in sorted(tree.mapping, key=lambda one: rank.get(one, 0)):
        parent = tree.mapping[key].parent
        known = parent is not None and parent in tree.mapping
        parents[MessageId(key)] = MessageId(parent) if known and parent is not None else None
    return parents


def _said(message: GptMessage, began_at: float) -> _Said | None:
    """None for what was not said between a person and the model, or says nothing."""
    metadata = message.metadata or GptMetadata()
    role = {"user": Role.USER, "assistant": Role.ASSISTANT}.get(message.author.role)
    spoken = message.content.content_type in ("text", "multimodal_text")
    to_a_tool = message.recipient not in (None, "all")
    if role is None or not spoken or to_a_tool or metadata.is_visually_hidden_from_conversation:
        return None
    text = "\n\n".join(filter(None, map(_part, message.content.parts or ())))
    if not text.strip():
        return None
    created_at = max(0.0, message.create_time or began_at)
    return _Said(role, text, created_at, metadata.model_slug or "ChatGPT")


def _part(part: object) -> str:
    """A text as it is, of anything else what it says or what it is."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('content_type', 'attachment')}]"


def _message(key: MessageId, parent_id: MessageId | None, said: _Said, text: str) -> SavedMessage:
    response = None
    if said.role is Role.ASSISTANT:
        asked = Asked(
            sampling=Sampling(),
            limits=Limits(),
            metadata={},
            generate=True,
            input_ids=() if parent_id is None else (parent_id,),
            head_key="",
            opening_end=0,
            boot_id="",
        )
        response = SavedResponse(
            id=ResponseId(key),
            parent_id=parent_id,
            status=ResponseStatus.COMPLETED,
            model=said.model,
            asked=asked,
            created_at=said.created_at,
            completed_at=said.created_at,
        )
    return SavedMessage(
        id=key,
        parent_id=parent_id,
        role=said.role,
        text=text,
        created_at=said.created_at,
        response=response,
    )
