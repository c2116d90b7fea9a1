"""Steering: what a client adds to an answer while it is written. PURE.

    response.steer ──> accepted ──> the answer ends, steered or by itself ──> its successor begins
          │                ├──> pending: it called functions; used where the client brings their outputs
          └──> failed      └──> failed: it ended otherwise, or no successor could be made

Accepted input is the server's until the successor's `response.created`, and lives with its socket
only. What fails gives the input back as it came. These events are no part of a response's log, which
others can read as well: a socket numbers them for itself.
"""

import msgspec
from msgspec import UNSET

from app.chat.entry import TurnRequest
from app.errors import AppError, InvalidRequest
from app.events import ResponseStatus, ResponseView
from app.ids import ResponseId, new_steer_id
from app.routes.openai.events import (
    LifeEvent,
    RequiredOutput,
    ServerEvent,
    SteerAccepted,
    SteerError,
    SteerFailed,
    SteerId,
    SteerInput,
    SteerPending,
)
from app.routes.openai.functions import FunctionCall
from app.routes.openai.items import brought
from app.routes.openai.requests import Document, steer_create
from engine.api import Message, Role

PENDING_STEERS = 8
"""That may wait for the successor of one response."""


class Steer(msgspec.Struct, frozen=True, kw_only=True):
    """Input that was accepted; `given` is it as it came."""

    id: str
    given: object
    messages: tuple[Message, ...]


class Telling:
    """A response that a lane tells, and what was accepted for its successor."""

    __slots__ = ("padding", "required", "response_id", "steers", "turn")

    def __init__(self, turn: TurnRequest, response_id: ResponseId, *, padding: bool) -> None:
        self.padding = padding
        self.turn = turn
        self.response_id = response_id
        self.steers: list[Steer] = []
        self.required: tuple[RequiredOutput, ...] = ()
        """Of a complete response: the calls that wait for their outputs."""

    def hear(self, event: ServerEvent) -> None:
        """What was told of the response."""
        if isinstance(event, LifeEvent) and event.type == "response.completed":
            self.required = tuple(
                RequiredOutput(call_id=item.call_id, name=item.name)
                for item in event.response.output
                if isinstance(item, FunctionCall)
            )

    def accept(self, document: Document) -> Steer:
        """Raises `InvalidRequest` in the dialect's codes of a failed steer."""
        said = _messages(document)
        if not self.turn.generate or self.turn.conversation_id is not None:
            raise InvalidRequest(
                "What warms up or belongs to a conversation cannot be steered.",
                code="steering_not_supported",
            )
        if len(self.steers) == PENDING_STEERS:
            raise InvalidRequest(
                f"{PENDING_STEERS} steers wait for this response already.",
                code="too_many_pending_steers",
            )
        steer = Steer(id=new_steer_id(), given=document["input"], messages=said)
        self.steers.append(steer)
        return steer

    def successor(self) -> TurnRequest:
        """The same settings, below this response, with all that was accepted in its order."""
        return msgspec.structs.replace(
            self.turn,
            messages=self._said,
            results=(),
            previous_response_id=self.response_id,
        )

    def continued(self, turn: TurnRequest) -> TurnRequest:
        """The client's own continuation, with all that was accepted before what it says itself.

        Outputs stay in front of both, next to the calls that they answer.
        """
        count = len(turn.results)
        return msgspec.structs.replace(
            turn, messages=(*turn.messages[:count], *self._said, *turn.messages[count:])
        )

    @property
    def _said(self) -> tuple[Message, ...]:
        return tuple(message for steer in self.steers for message in steer.messages)


def _messages(document: Document) -> tuple[Message, ...]:
    try:
        said = brought(steer_create(document).input, "input", None).messages
    except InvalidRequest as error:
        raise InvalidRequest(error.message, code="invalid_input") from error
    if any(one.role is not Role.USER for one in said):
        raise InvalidRequest("A steer brings messages of the user's only.", code="invalid_input")
    return said


def not_told(document: Document, ended: ResponseView | None) -> InvalidRequest:
    """Why a response that no lane tells now cannot be steered; `ended` is it, where it was told."""
    if ended is None:
        _messages(document)
        named = document["previous_response_id"]
        return InvalidRequest(f"{named!r} is not on this connection.", code="response_not_found")
    if ended.status is ResponseStatus.COMPLETED:
        return InvalidRequest("The response is complete.", code="response_already_completed")
    return not_active()


def not_active() -> InvalidRequest:
    """It was stopped or failed, and takes nothing more."""
    return InvalidRequest("The response has ended.", code="response_not_active")


def successor_failed(error: AppError) -> InvalidRequest:
    return InvalidRequest(error.message, code="successor_creation_failed")


# ---------------------------------------------------------------- events


def steer_accepted(
    steer: Steer, response_id: ResponseId, number: int, stream_id: str | None
) -> SteerAccepted:
    return SteerAccepted(
        sequence_number=number,
        steer=SteerId(id=steer.id, previous_response_id=response_id),
        stream_id=UNSET if stream_id is None else stream_id,
    )


def steer_pending(
    steer: Steer, telling: Telling, number: int, stream_id: str | None
) -> SteerPending:
    return SteerPending(
        sequence_number=number,
        steer=SteerId(id=steer.id, previous_response_id=telling.response_id),
        required_input=telling.required,
        stream_id=UNSET if stream_id is None else stream_id,
    )


def steer_failed(
    error: AppError, returned: SteerInput, number: int, stream_id: str | None
) -> SteerFailed:
    return SteerFailed(
        sequence_number=number,
        error=SteerError(code=error.code, message=error.message),
        steer=returned,
        stream_id=UNSET if stream_id is None else stream_id,
    )


def as_it_came(document: Document) -> SteerInput:
    """What a refused steer gives back; it has got no id."""
    named = document.get("previous_response_id")
    return SteerInput(
        previous_response_id=named if isinstance(named, str) else "",
        input=document.get("input"),
    )


def given_back(steer: Steer, response_id: ResponseId) -> SteerInput:
    """What an accepted steer gives back."""
    return SteerInput(id=steer.id, previous_response_id=response_id, input=steer.given)
