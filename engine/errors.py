"""The engine's errors.

EngineError
├── Refused           this job cannot be served; the job is at fault or the engine is full
│   ├── PromptTooLong     prompt beyond the context or the pool; carries both numbers
│   ├── Overloaded        the queue is full; carries when to try again
│   ├── InvalidJob        a field that no later retry would make valid
│   └── InvalidGrammar    no reply can be held to it; says why in words
├── EngineLost        the engine process died; the job may be submitted again
├── EngineClosed      the engine was closed on purpose; nothing more is accepted
├── Corrupt           bytes that fail their checksum or an invariant that does not hold
└── Misconfigured     found at start: names the setting, the value and the fix

`Refused` reaches callers as an event (`Finished(refusal=...)`), the others are raised.
"""


class EngineError(Exception):
    """Root of everything the engine raises on purpose."""


class Refused(EngineError):
    """A job that was not served, with a stable code and the field at fault."""

    code = "refused"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class PromptTooLong(Refused):
    """The prompt and its reply do not fit; both numbers are part of the refusal."""

    code = "prompt_too_long"

    def __init__(self, message: str, *, needed_tokens: int, limit_tokens: int) -> None:
        super().__init__(message, field="token_ids")
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens


class Overloaded(Refused):
    """More jobs wait than the engine queues; worth another try after `retry_after_s`."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InvalidJob(Refused):
    """A job that breaks the contract, for example an empty prompt or an id out of range."""

    code = "invalid_job"


class InvalidGrammar(Refused):
    """A grammar that is none, that nothing satisfies, or that is too complex to be followed."""

    code = "invalid_grammar"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="grammar")


class EngineLost(EngineError):
    """The engine's process is gone; what it was doing can be asked for again."""


class EngineClosed(EngineError):
    """The engine was closed; it accepts nothing more."""


class Corrupt(EngineError):
    """Stored bytes or the engine's own books contradict themselves."""


class Misconfigured(EngineError):
    """The engine cannot start as configured; the message names the value and the fix."""
