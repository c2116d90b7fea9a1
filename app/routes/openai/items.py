"""From the items that a request brings to messages, and from messages to items. PURE.

What a reply says and calls is one message, whose text holds the calls in the template's form; what
functions gave are messages after it, in the order of the calls. Outputs of calls that stand in the same
request are looked up here, those of a reply before it where that is known.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from app.chat.calls import Call, Written, call_id, in_order, spelled, written
from app.chat.items import Item
from app.errors import InvalidRequest
from app.events import ResponseStatus
from app.routes.openai import functions, schema
from app.routes.openai.requests import missing, not_supported
from app.routes.openai.schema import ContentPart, InputMessage
from app.routes.openai.tools import call_form
from engine.api import CallForm, Message, ModelCard, Role

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}
_TEXT_PARTS = {"text", "input_text", "output_text"}


class Brought(NamedTuple):
    """New messages; the first of them are the outputs of these calls, made by what stands before."""

    messages: tuple[Message, ...]
    results: tuple[str, ...] = ()


class _Reply(NamedTuple):
    said: Written
    ids: tuple[str, ...]


class _Output(NamedTuple):
    call_id: str
    text: str
    path: str


_Step = Message | _Reply | _Output


def brought(
    given: str | Sequence[InputMessage] | None, field: str, card: ModelCard | None
) -> Brought:
    """A request's new messages; a string is one of the user's.

    `field` is what the items are called in errors; without a `card` nothing may call.
    """
    if isinstance(given, str):
        return Brought((Message(role=Role.USER, text=given),))
    steps = _steps(given or (), field)
    messages: list[Message] = []
    results: tuple[str, ...] = ()
    called: tuple[str, ...] | None = None
    while steps:
        outputs = _leading_outputs(steps)
        if outputs:
            found = tuple(Message(role=Role.TOOL, text=one.text) for one in outputs)
            names = tuple(one.call_id for one in outputs)
            if messages:
                found = in_order(found, names, called or (), outputs[0].path)
            else:
                results = names
            messages += found
            del steps[: len(outputs)]
            called = None
            continue
        step = steps.pop(0)
        if isinstance(step, _Reply):
            called = step.ids
            messages.append(_reply(step, field, card))
        elif isinstance(step, Message):
            called = None
            messages.append(step)
    return Brought(tuple(messages), results)


def _leading_outputs(steps: Sequence[_Step]) -> list[_Output]:
    outputs: list[_Output] = []
    for step in steps:
        if not isinstance(step, _Output):
            break
        outputs.append(step)
    return outputs


def _reply(step: _Reply, field: str, card: ModelCard | None) -> Message:
    if not step.said.calls:
        return Message(role=Role.ASSISTANT, text=step.said.text)
    if card is None:
        raise not_supported(field)
    return Message(role=Role.ASSISTANT, text=spelled(step.said, call_form(card, field)))


def _steps(items: Iterable[InputMessage], field: str) -> list[_Step]:
    """Calls join the reply right before them."""
    steps: list[_Step] = []
    for index, item in enumerate(items):
        step = _step(item, f"{field}[{index}]")
        before = steps[-1] if steps else None
        if item.type == "function_call" and isinstance(before, _Reply) and isinstance(step, _Reply):
            said = msgspec.structs.replace(
                before.said, calls=(*before.said.calls, *step.said.calls)
            )
            steps[-1] = _Reply(said, (*before.ids, *step.ids))
        else:
            steps.append(step)
    return steps


def _step(item: InputMessage, path: str) -> _Step:
    match item.type:
        case "function_call":
            call = _call(item.name, item.arguments, path)
            return _Reply(Written(text="", calls=(call,)), (_given(item.call_id, path, "call_id"),))
        case "function_call_output":
            named = _given(item.call_id, path, "call_id")
            return _Output(named, _text(item.output, f"{path}.output"), f"{path}.call_id")
        case "message":
            return _message(item, path)
        case _:
            raise not_supported(f"{path}.type")


def _message(item: InputMessage, path: str) -> _Step:
    if item.role is None:
        raise missing(f"{path}.role")
    if item.role == "tool" and path.startswith("messages"):
        named = _given(item.tool_call_id, path, "tool_call_id")
        return _Output(named, _text(item.content, f"{path}.content"), f"{path}.tool_call_id")
    if item.role not in _ROLES:
        raise not_supported(f"{path}.role")
    role = _ROLES[item.role]
    calls = item.tool_calls or ()
    if role is not Role.ASSISTANT:
        if calls:
            raise not_supported(f"{path}.tool_calls")
        return Message(role=role, text=_text(item.content, f"{path}.content"))
    text = "" if calls and item.content is None else _text(item.content, f"{path}.content")
    places = [f"{path}.tool_calls[{place}]" for place in range(len(calls))]
    made = [
        _call(call.function.name, call.function.arguments, f"{place}.function")
        for call, place in zip(calls, places, strict=True)
    ]
    return _Reply(Written(text=text, calls=tuple(made)), tuple(call.id for call in calls))


def _call(name: str | None, arguments: str | None, path: str) -> Call:
    """Arguments as they were sent: spelled as they were generated they are found again."""
    call = Call(name=_given(name, path, "name"), arguments=_given(arguments, path, "arguments"))
    try:
        is_object = isinstance(msgspec.json.decode(call.arguments), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        is_object = False
    if not is_object:
        raise InvalidRequest("Arguments are a JSON object.", field=f"{path}.arguments")
    return call


def _given(value: str | None, path: str, name: str) -> str:
    if value is None:
        raise missing(f"{path}.{name}")
    return value


def _text(content: str | tuple[ContentPart, ...] | None, path: str) -> str:
    if content is None:
        raise missing(path)
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: ContentPart, path: str) -> str:
    if part.type not in _TEXT_PARTS:
        raise not_supported(f"{path}.type")
    if part.text is None:
        raise missing(f"{path}.text")
    return part.text


# ---------------------------------------------------------------- messages to items


_OUTPUT_STATUS = {
    ResponseStatus.QUEUED: "in_progress",
    ResponseStatus.IN_PROGRESS: "in_progress",
    ResponseStatus.COMPLETED: "completed",
}


def output_status(status: ResponseStatus) -> str:
    """Of an item of a response."""
    return _OUTPUT_STATUS.get(status, "incomplete")


def function_call(
    message_id: str, place: int, call: Call, *, status: str = "completed"
) -> functions.FunctionCall:
    return functions.FunctionCall(
        id=f"fc_{message_id.removeprefix('msg_')}_{place}",
        call_id=call_id(message_id, place),
        name=call.name,
        arguments=call.arguments,
        status=status if call.is_whole or status == "in_progress" else "incomplete",
    )


def listed(said: Iterable[Item], form: CallForm | None) -> list[schema.ListedItem]:
    """Messages, oldest first: a reply that calls is several items."""
    items: list[schema.ListedItem] = []
    places: dict[str | None, tuple[str, int]] = {}
    """Of an output which reply called it, and as the how manieth of its calls."""
    for one in said:
        message = one.message
        if message.role == Role.TOOL:
            reply_id, place = places.get(message.parent_id, (message.parent_id or "", -1))
            places[message.id] = reply_id, place + 1
            items.append(
                functions.FunctionOutput(
                    id=message.id, call_id=call_id(reply_id, place + 1), output=message.text
                )
            )
        elif message.role == Role.ASSISTANT and form is not None:
            items += _reply_items(one, form)
        else:
            items.append(_message_item(one, message.text))
    return items


def _reply_items(one: Item, form: CallForm) -> Iterable[schema.ListedItem]:
    reply = written(one.message.text, form)
    if reply.text or not reply.calls:
        yield _message_item(one, reply.text)
    for place, call in enumerate(reply.calls):
        yield function_call(one.message.id, place, call)


def _message_item(one: Item, text: str) -> schema.InputItem:
    message = one.message
    part = schema.OutputText if message.role == Role.ASSISTANT else schema.InputText
    return schema.InputItem(
        id=message.id,
        role=message.role,
        content=(part(text=text),),
        status=output_status(one.status),
    )
