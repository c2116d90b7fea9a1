"""What a request asks of its answer, as it is kept with the response. PURE."""

import enum

import msgspec

from app.ids import MessageId, ResponseId, UserId
from engine.api import CallForm, CallGrammar, Function, JsonGrammar, Limits, OwnerId, Sampling

ANY_OBJECT = '{"type": "object"}'


class CacheAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says about what is computed for it."""

    key: str | None = None
    """Names a use, whose turns hold one session at a time."""
    ttl_s: float | None = None
    """To be held for so long after each turn, as far as the budgets allow."""
    memory_only: bool = False
    """Never to be written to a disk."""
    comparison_id: ResponseId | None = None
    """Names the response whose prompt this one's is compared with."""


class Difference(enum.StrEnum):
    """Why a prompt does not begin with all that another one was."""

    MODEL = "model_changed"
    TOOLS = "tools_changed"
    SHORTENED = "context_compacted"
    INPUT = "input_changed"


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt stood to that of another response when its turn was accepted (`comparison`)."""

    response_id: ResponseId
    is_known: bool = True
    tokens: int | None = None
    """Of the other prompt; None where it is not known."""
    shared_tokens: int = 0
    """That both begin with."""
    difference: Difference | None = None


class AnswerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """That an answer is to be JSON: any object, or what `schema` says, which is JSON text itself."""

    name: str | None = None
    description: str | None = None
    schema: str | None = None
    strict: bool | None = None

    def grammar(self, user_id: UserId) -> JsonGrammar:
        return JsonGrammar(
            owner_id=OwnerId(user_id),
            schema=self.schema or ANY_OBJECT,
            strict=bool(self.strict),
        )


class Choice(enum.StrEnum):
    """Whether an answer calls."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer may call, and in which form it does."""

    functions: tuple[Function, ...]
    form: CallForm
    choice: Choice = Choice.AUTO
    named: str | None = None
    """The one function that is to be called."""
    allowed: tuple[str, ...] = ()
    """Those that may be called this time; none named: all that are declared."""
    parallel: bool = True

    def grammar(self, user_id: UserId, says: JsonGrammar | None = None) -> CallGrammar:
        """All functions are declared to the model, whichever of them may be called this time."""
        return CallGrammar(
            owner_id=OwnerId(user_id),
            form=self.form,
            functions=tuple(one for one in self.functions if self._allows(one)),
            required=self.choice is Choice.REQUIRED,
            several=self.parallel and self.named is None,
            says=says,
        )

    def _allows(self, function: Function) -> bool:
        names = self.allowed if self.named is None else (self.named,)
        return self.choice is not Choice.NONE and (not names or function.name in names)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a response keeps of the request that made it."""

    sampling: Sampling
    limits: Limits
    metadata: dict[str, str]
    generate: bool
    input_ids: tuple[MessageId, ...]
    """The messages that this request brought, oldest first."""
    head_key: str
    opening_end: int
    shortenable: bool = False
    boot_id: str
    """Of the engine when the turn was accepted, for a turn that got no receipt."""
    cache: CacheAsked = CacheAsked()
    in_conversation: bool = False
    """Whether it named its conversation, and not a response or nothing."""
    format: AnswerFormat | None = None
    tools: Tools | None = None
    compared: Compared | None = None
