"""How a chat template writes calls of functions: found at load, from what it writes of made-up ones.

A reply that calls is kept as its text, as every reply is. So calls can be had only where the template
writes a call as it would write that text, where declared functions stand at the start alone, and where
what a function gave is written behind any history as behind the call. What fails is said in words.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.api import CallForm, Function, Message, RenderRequest, Role, Seam
from engine.errors import InvalidJob

if TYPE_CHECKING:
    from engine.model.template import Renderer

_FUNCTION = Function(
    name="find_harbour",
    description="Finds where a ship can moor.",
    parameters='{"type": "object", "properties": {"shore": {"type": "string"}}}',
)
_USER = Message(role=Role.USER, text="Where can we moor?")
_SYSTEM = Message(role=Role.SYSTEM, text="Answer like a pilot.")
_GIVEN = (
    Message(role=Role.TOOL, text="Behind the island."),
    Message(role=Role.TOOL, text="At the pier."),
)
_THEN = (
    Message(role=Role.ASSISTANT, text="Behind the island, or at the pier."),
    Message(role=Role.USER, text="Thank you."),
)
_ARGUMENTS = ({"shore": "north"}, {"shore": "south"})
_SAID = "I look it up."


class NoCalls(Exception):
    """Why replies under a template can call no functions, in words."""


def find_call_form(renderer: "Renderer") -> CallForm:
    """How it writes a call. Raises `NoCalls`."""
    try:
        form = _form(renderer)
        _check_decoding(renderer, form)
        for heading in ((), (_SYSTEM,)) if renderer.system_problem is None else ((),):
            _check_history(renderer, form, heading)
    except InvalidJob as error:
        raise NoCalls(error.message) from error
    return form


def _form(renderer: "Renderer") -> CallForm:
    if _FUNCTION.name not in renderer.text([_USER], tools=(_FUNCTION,)):
        raise NoCalls("the model's chat template declares no functions")
    one, two, said = (
        _reply(renderer, text, calls) for text, calls in (("", 1), ("", 2), (_SAID, 1))
    )
    spelled = json.dumps(_ARGUMENTS[0])
    opening, found, rest = one.partition(_FUNCTION.name)
    middle, also_found, closing = rest.partition(spelled)
    if not (found and also_found and closing) or opening[:1] not in ("<", "["):
        raise NoCalls("the model's chat template writes calls in no form that is understood here")
    second = opening + _FUNCTION.name + middle + json.dumps(_ARGUMENTS[1]) + closing
    separator = two.removeprefix(one).removesuffix(second)
    if two != one + separator + second or said != _SAID + separator + one:
        raise NoCalls("the model's chat template does not write calls one after the other")
    return CallForm(opening=opening, middle=middle, closing=closing, separator=separator)


def _reply(renderer: "Renderer", text: str, calls: int) -> str:
    """What the template writes of a reply that calls, where it would write another reply's text."""
    asked = renderer.text([_USER, Message(role=Role.ASSISTANT, text=_SAID)], tools=(_FUNCTION,))
    before, _, behind = asked.rpartition(_SAID)
    whole = renderer.written([renderer.as_told(_USER), _calling(text, calls)], tools=(_FUNCTION,))
    if not (whole.startswith(before) and whole.endswith(behind)):
        raise NoCalls("the model's chat template writes replies that call otherwise than others")
    return whole[len(before) : len(whole) - len(behind)]


def _calling(text: str, calls: int) -> dict[str, Any]:
    """A reply with calls in the words of templates."""
    made = [
        {"type": "function", "function": {"name": _FUNCTION.name, "arguments": arguments}}
        for arguments in _ARGUMENTS[:calls]
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def _check_decoding(renderer: "Renderer", form: CallForm) -> None:
    text = _spelled(form)
    if renderer.vocabulary.decode(renderer.encode(text)) != text:
        raise NoCalls("the model's tokenizer does not show what calls are written with")


def _spelled(form: CallForm) -> str:
    return form.separator.join(
        form.opening + _FUNCTION.name + form.middle + json.dumps(arguments) + form.closing
        for arguments in _ARGUMENTS
    )


def _check_history(renderer: "Renderer", form: CallForm, heading: Sequence[Message]) -> None:
    """A conversation with calls against one with their text, and against its pieces."""
    reply = Message(role=Role.ASSISTANT, text=_spelled(form))
    said = (_USER, reply, *_GIVEN, *_THEN)
    whole = renderer.text([*heading, *said], tools=(_FUNCTION,))
    told = [renderer.as_told(message) for message in (*heading, *said)]
    told[len(heading) + 1] = _calling("", 2)
    if whole != renderer.written(told, tools=(_FUNCTION,)):
        raise NoCalls("the model's chat template writes calls otherwise than their text")
    for cut in (0, 2, 5):
        request = RenderRequest(messages=said[cut:], seam=Seam.CLOSED, opens_reply=False)
        text, start = renderer.continued(request)
        if not whole.endswith(text[start:]):
            raise NoCalls(
                "the model's chat template writes what follows otherwise behind functions"
            )
        if not cut and _FUNCTION.name not in whole.removesuffix(text[start:]):
            raise NoCalls("the model's chat template does not declare functions at the start")
