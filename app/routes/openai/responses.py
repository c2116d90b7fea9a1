"""`/v1/responses` over HTTP: plain, as server-sent events, and resumed by sequence number.

Every stored response can be watched again, live or ended, from any number on (law 14).
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from app.chat.eventlog import EventLog
from app.chat.items import Items
from app.chat.supervisor import Supervisor
from app.errors import InvalidRequest, NotFound
from app.events import LogEvent
from app.ids import ResponseId
from app.routes.openai.events import LifeEvent, ServerEvent
from app.routes.openai.exchange import DialectRequest, begin, event_stream, json_answer
from app.routes.openai.items import listed
from app.routes.openai.objects import (
    item_page,
    response_object,
    stored_echo,
    stored_response,
)
from app.routes.openai.requests import read_document, response_create
from app.routes.openai.schema import (
    Echo,
    InputItemList,
    ResponseCreate,
    ResponseDeleted,
    ResponseObject,
)
from app.routes.openai.turns import echo, response_turn, wants_padding
from app.routes.openai.view import TERMINAL, ResponseFold
from app.routes.published.told import EVENT_STREAM, JSON, told
from engine.api import Engine

ResponsePath = "/v1/responses/{response_id:str}"
LAST_NUMBER = 2**53 - 1
"""The largest integer that JSON carries safely; no log comes near it."""


@post(
    "/v1/responses",
    status_code=200,
    opt=told(
        takes={JSON: ResponseCreate},
        gives={JSON: ResponseObject, EVENT_STREAM: ServerEvent},
        fails=(404, 409),
    ),
)
async def create_response(
    request: DialectRequest,
    supervisor: NamedDependency[Supervisor],
    engine: NamedDependency[Engine],
) -> Response[Any]:
    asked = response_create(read_document(await request.body()))
    _check_background(asked)
    turn = response_turn(asked, await engine.info())
    exchange = await begin(supervisor, request.user, turn)
    repeated = echo(turn, exchange.compared)
    if asked.stream:
        return exchange.stream(_frames(exchange.log, repeated, padding=wants_padding(asked)))
    if asked.background:
        return json_answer(response_object(exchange.log.response, repeated, ()))
    events = await exchange.whole(request)
    return json_answer(None if events is None else _last(events, repeated))


@get(ResponsePath, opt=told(gives={JSON: ResponseObject, EVENT_STREAM: ServerEvent}))
async def show_response(
    request: DialectRequest,
    supervisor: NamedDependency[Supervisor],
    response_id: FromPath[str],
    *,
    stream: FromQuery[bool] = False,
    starting_after: Annotated[int | None, QueryParameter(le=LAST_NUMBER)] = None,
    include_obfuscation: FromQuery[bool] = False,
) -> Response[Any]:
    """With `stream=true` the events after `starting_after`, or all of them."""
    found = await supervisor.response(request.user, _id(response_id))
    if not stream:
        if starting_after is not None:
            raise InvalidRequest("`starting_after` needs `stream=true`.", field="starting_after")
        return json_answer(stored_response(found))
    after = -1 if starting_after is None else starting_after
    asked = stored_echo(found)
    # What is parted into items is numbered from the log's start, also where that is made anew.
    log = await supervisor.log(request.user, found.view.id, -1 if asked.tools else after)
    return event_stream(_frames(log, asked, after, padding=include_obfuscation))


@post(ResponsePath + "/cancel", status_code=200)
async def cancel_response(
    request: DialectRequest, supervisor: NamedDependency[Supervisor], response_id: FromPath[str]
) -> ResponseObject:
    """Any response, in any state; one that has ended stays as it is."""
    await supervisor.cancel(request.user, _id(response_id))
    return stored_response(await supervisor.response(request.user, _id(response_id)))


@delete(ResponsePath, status_code=200)
async def delete_response(
    request: DialectRequest, supervisor: NamedDependency[Supervisor], response_id: FromPath[str]
) -> ResponseDeleted:
    await supervisor.delete_response(request.user, _id(response_id))
    return ResponseDeleted(id=response_id)


@get(ResponsePath + "/input_items")
async def list_input_items(
    request: DialectRequest,
    items: NamedDependency[Items],
    response_id: FromPath[str],
    *,
    after: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20,
    order: FromQuery[Literal["asc", "desc"]] = "desc",
) -> InputItemList:
    """The items that the response's own request brought."""
    brought = await items.of_response(request.user, _id(response_id))
    found = listed(brought, await items.call_form())
    return item_page(found if order == "asc" else found[::-1], after, limit)


handlers = [create_response, show_response, cancel_response, delete_response, list_input_items]


_ID = re.compile(r"resp_[0-9a-z]{26}")


def _id(text: str) -> ResponseId:
    """What cannot be an id is not looked up: a database refuses some texts instead of missing them."""
    if not _ID.fullmatch(text):
        raise NotFound("There is no such response.", field="response_id")
    return ResponseId(text)


def _check_background(asked: ResponseCreate) -> None:
    if asked.background and asked.store is False:
        raise InvalidRequest("A background response must be stored.", field="background")


async def _frames(
    log: EventLog, asked: Echo, after: int = -1, *, padding: bool
) -> AsyncIterator[bytes]:
    """The whole log is folded, only what is new is sent; see `view`."""
    fold = ResponseFold(asked, padding=padding)
    async for event in log.subscribe():
        for seen in fold.events(event):
            if seen.sequence_number > after:
                yield _frame(seen)
            elif asked.tools and isinstance(seen, LifeEvent) and seen.type in TERMINAL:
                # The cursor is of a log that had more pieces: the end tells all of it.
                yield _frame(msgspec.structs.replace(seen, sequence_number=after + 1))


def _frame(event: ServerEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event))


def _last(events: Sequence[LogEvent], asked: Echo) -> ResponseObject:
    """The response as its terminal event shows it."""
    fold = ResponseFold(asked)
    told = [seen for event in events for seen in fold.events(event)]
    end = told[-1]
    assert isinstance(end, LifeEvent), "a log ends with the response's end"
    return end.response
