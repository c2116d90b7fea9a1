"""`/v1/conversations`: conversations that a client makes itself, and their items.

A response is asked for in one by `conversation` instead of `previous_response_id`.
"""

import re
from typing import Annotated, Literal

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from app.chat.items import Items, Labelled
from app.errors import AppError, NotFound
from app.ids import ConversationId, MessageId
from app.routes.openai.exchange import DialectRequest
from app.routes.openai.items import brought, listed
from app.routes.openai.objects import item_page
from app.routes.openai.requests import (
    conversation_create,
    conversation_update,
    items_create,
    read_document,
)
from app.routes.openai.schema import (
    ConversationCreate,
    ConversationObject,
    ConversationUpdate,
    DeletedConversation,
    InputItemList,
    ItemsCreate,
    ListedItem,
)
from app.routes.published.told import JSON, told
from engine.api import Engine

ConversationPath = "/v1/conversations/{conversation_id:str}"
ItemPath = ConversationPath + "/items/{item_id:str}"


@post("/v1/conversations", status_code=200, opt=told(takes={JSON: ConversationCreate}))
async def open_conversation(
    request: DialectRequest, items: NamedDependency[Items], engine: NamedDependency[Engine]
) -> ConversationObject:
    """With up to 20 items to begin with; where those are refused, nothing is made."""
    asked = conversation_create(read_document(await request.body()))
    new = brought(asked.items, "items", await engine.info())
    made = await items.create(request.user.user_id, asked.metadata or {})
    try:
        if new.messages:
            await items.add(request.user, made.id, new.messages, new.results)
    except AppError:
        await items.delete(request.user, made.id)
        raise
    return _object(made)


@get(ConversationPath)
async def retrieve_conversation(
    request: DialectRequest, items: NamedDependency[Items], conversation_id: FromPath[str]
) -> ConversationObject:
    return _object(await items.get(request.user.user_id, _id(conversation_id)))


@post(ConversationPath, status_code=200, opt=told(takes={JSON: ConversationUpdate}))
async def label_conversation(
    request: DialectRequest, items: NamedDependency[Items], conversation_id: FromPath[str]
) -> ConversationObject:
    """Its metadata anew, as a whole."""
    asked = conversation_update(read_document(await request.body()))
    user_id = request.user.user_id
    return _object(await items.label(user_id, _id(conversation_id), asked.metadata or {}))


@delete(ConversationPath, status_code=200)
async def close_conversation(
    request: DialectRequest, items: NamedDependency[Items], conversation_id: FromPath[str]
) -> DeletedConversation:
    """With its items, its responses and its KV."""
    await items.delete(request.user, _id(conversation_id))
    return DeletedConversation(id=conversation_id)


@post(
    ConversationPath + "/items",
    status_code=200,
    opt=told(takes={JSON: ItemsCreate}, fails=(409,)),
)
async def create_items(
    request: DialectRequest,
    items: NamedDependency[Items],
    engine: NamedDependency[Engine],
    conversation_id: FromPath[str],
) -> InputItemList:
    """Up to 20 messages behind what is there; they are computed when this returns."""
    asked = items_create(read_document(await request.body()))
    card = await engine.info()
    new = brought(asked.items, "items", card)
    made = await items.add(request.user, _id(conversation_id), new.messages, new.results)
    found = listed(made, card.template.calls)
    return item_page(found, None, len(found))


@get(ConversationPath + "/items")
async def list_items(
    request: DialectRequest,
    items: NamedDependency[Items],
    conversation_id: FromPath[str],
    *,
    after: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20,
    order: FromQuery[Literal["asc", "desc"]] = "desc",
) -> InputItemList:
    said = await items.list(request.user.user_id, _id(conversation_id))
    found = listed(said, await items.call_form())
    return item_page(found if order == "asc" else found[::-1], after, limit)


@get(ItemPath)
async def show_item(
    request: DialectRequest,
    items: NamedDependency[Items],
    conversation_id: FromPath[str],
    item_id: FromPath[str],
) -> ListedItem:
    said = await items.list(request.user.user_id, _id(conversation_id))
    found = listed(said, await items.call_form())
    item = next((one for one in found if one.id == item_id), None)
    if item is None:
        raise NotFound("There is no such item.", field="item_id")
    return item


@delete(ItemPath, status_code=200, opt=told(fails=(409,)))
async def delete_item(
    request: DialectRequest,
    items: NamedDependency[Items],
    conversation_id: FromPath[str],
    item_id: FromPath[str],
) -> ConversationObject:
    """What is said below it stays; the next response reads that anew."""
    if not _MESSAGE.fullmatch(item_id):
        raise NotFound("There is no such item.", field="item_id")
    conversation = _id(conversation_id)
    return _object(await items.remove(request.user, conversation, MessageId(item_id)))


handlers = [
    open_conversation,
    retrieve_conversation,
    label_conversation,
    close_conversation,
    create_items,
    list_items,
    show_item,
    delete_item,
]


_CONVERSATION = re.compile(r"conv_[0-9a-z]{26}")
_MESSAGE = re.compile(r"msg_[0-9a-z]{26}")


def _id(text: str) -> ConversationId:
    """What cannot be an id is not looked up: a database refuses some texts instead of missing them."""
    if not _CONVERSATION.fullmatch(text):
        raise NotFound("There is no such conversation.", field="conversation_id")
    return ConversationId(text)


def _object(found: Labelled) -> ConversationObject:
    return ConversationObject(
        id=found.id, created_at=int(found.created_at.timestamp()), metadata=found.labels
    )
