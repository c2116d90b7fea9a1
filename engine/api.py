"""The engine's contract: structs, enums and the nine calls of `Engine`.

Everything that crosses between `app` and `engine` is declared here, in `terms` (ids and kinds) and
in `figures` (what the engine tells of itself), and nowhere else. Token ids are plain ints, positions
count tokens from 0, intervals are half-open `[start, end)`, durations are seconds. Nothing here
knows torch, a process or a clock.
"""

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from engine.figures import CachedBySource, CacheEvent, CacheSnapshot, Stats
from engine.terms import (
    CacheSource,
    FinishReason,
    JobClass,
    JobId,
    MissReason,
    OwnerId,
    RetentionClass,
    Scope,
    SessionId,
    SubjectKind,
)

OPERATOR_SCOPE = Scope("operator")
"""What every owner may match; `operator:<for whom>` is the operator's too, for some to match."""


# ---------------------------------------------------------------- text to ids


class Role(enum.StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """What a function gave that a reply called."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message as text, before the template."""

    role: Role
    text: str


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply may call. `parameters` is JSON Schema as JSON text: of an object, its arguments."""

    name: str
    description: str | None = None
    parameters: str = '{"type": "object", "properties": {}}'
    strict: bool = False
    """As a grammar's: whether what of the schema cannot be held to is refused."""


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """How the model's template writes in a reply that functions are called, as text of the reply.

    [said separator] [opening NAME middle ARGUMENTS closing] [separator opening NAME ... closing] ..
    """

    opening: str
    middle: str
    closing: str
    separator: str


class JsonGrammar(msgspec.Struct, frozen=True, kw_only=True, tag="json"):
    """A reply is one value of JSON that `schema` allows, in one spelling of spaces.

    Where not `strict`, what of the schema cannot be held to is passed over; else it is refused.
    """

    owner_id: OwnerId
    """A grammar that was made ready is so for its owner alone (law 11)."""
    schema: str
    """JSON Schema as JSON text; what it refers to is in it."""
    strict: bool = True


class CallGrammar(msgspec.Struct, frozen=True, kw_only=True, tag="calls"):
    """A reply is text, or calls of these functions with or without text before them.

    Without functions it is text in which no call begins.
    """

    owner_id: OwnerId
    form: CallForm
    functions: tuple[Function, ...]
    required: bool = False
    """It begins with a call."""
    several: bool = True
    """After one call another may follow."""
    says: JsonGrammar | None = None
    """What a reply is that calls nothing, and then nothing stands before a call; None: any text."""


Grammar = JsonGrammar | CallGrammar
"""What a reply must be."""


class Seam(enum.StrEnum):
    """How the ids that a rendering continues end, which decides the glue that comes first.

    START: there are none. CLOSED: a message with its closing glue. STOPPED: a reply that ends in
    its own end-of-turn token. CUT: a reply without one (stopped, or out of tokens).
    """

    START = "start"
    CLOSED = "closed"
    STOPPED = "stopped"
    CUT = "cut"


class RenderRequest(msgspec.Struct, frozen=True, kw_only=True):
    """New messages to turn into ids, continuing ids that end in `seam`.

    With `opens_reply` the rendering ends where the assistant's first token comes. Where the model's
    template is unstable (`ModelCard.template.stability`) callers send the whole history with
    `Seam.START`; where it is appendable, new messages alone as where it is stable.
    """

    messages: tuple[Message, ...]
    seam: Seam
    opens_reply: bool
    grammar: Grammar | None = None
    """What the reply is to follow: made ready here, so that a bad one is refused with the text."""
    tools: tuple[Function, ...] = ()
    """Declared by the template at the start: with `Seam.START` only, where `ModelCard.template` has
    a form for calls. What follows them is rendered without."""


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """`token_ids` of the new part only; `ends[i]` is where message i and its glue end in it.

    With `Seam.START` the template may open with tokens of its own (a BOS, a default system
    message); these end at `opening_end` and hold no caller's text but the declared tools.
    """

    token_ids: tuple[int, ...]
    ends: tuple[int, ...]
    opening_end: int


# ---------------------------------------------------------------- jobs


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens from the previous zone's end up to `end` are matched inside `scope`.

    Zones are in order and the last one ends at the prompt's end; output continues the last zone.
    """

    scope: Scope
    source: CacheSource
    end: int


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen; `temperature` 0 is greedy. `top_k` 0 means all tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    """Same seed, same prompt, same output; the stream is keyed by seed and position."""
    logprobs: int | None = None
    """None: no logprobs. n: of the chosen token and of the n most likely (0 to 20)."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a reply ends. `max_output_tokens` None means as many as the context holds."""

    max_output_tokens: int | None = None
    min_output_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What this conversation sent last time: enough to name the reason of a miss."""

    token_ids: tuple[int, ...]
    """Prompt and output of the turn that this one follows."""
    model_fingerprint: str
    template_fingerprint: str
    boot_id: str
    head_end: int = 0
    """Where the previous prompt's instructions or persona ended."""
    forked: bool = False
    """True when this turn leaves the branch that the previous turn was on."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One `generate` call: a turn, a title, a warm-up. A warm-up has `max_output_tokens` 0."""

    job_id: JobId
    owner_id: OwnerId
    token_ids: tuple[int, ...]
    zones: tuple[Zone, ...]
    session_id: SessionId | None = None
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    job_class: JobClass = JobClass.INTERACTIVE
    history: History | None = None
    grammar: Grammar | None = None
    """What the output must follow; then it ends where nothing else may come, whatever `limits` say."""
    resumed_output: tuple[int, ...] = ()
    """Output that a lost engine had already sent: it is replayed as output, never sent again."""
    durable: bool = True
    """False: what it computes lies in memory only, and is never parked on disk."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn cost. `cached_tokens + computed_tokens == prompt_tokens`, always (law 2)."""

    prompt_tokens: int
    """The whole prompt's, or of a turn that was cancelled in mid-prefill the part it got through."""
    cached_tokens: int
    restored_tokens: int = 0
    """Of the cached tokens, those that came back from a lower tier."""
    computed_tokens: int
    output_tokens: int
    cached_by_source: CachedBySource
    miss_reason: MissReason | None
    """Why more than the new turn was computed; None when the whole history was cached."""
    differs_at: int | None
    """First position at which the prompt differs from the conversation's history, if it does."""
    queue_s: float
    prefill_s: float
    first_token_s: float | None
    """From submission to the first output token; None when there was none."""
    total_s: float
    model_fingerprint: str
    template_fingerprint: str
    boot_id: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job was not served: a code of `engine.errors`, words, and the numbers involved."""

    code: str
    message: str
    field: str | None = None
    needed_tokens: int | None = None
    limit_tokens: int | None = None
    retry_after_s: float | None = None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token_id: int
    token: str
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of one output token: the chosen one and the most likely ones, best first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The job holds its blocks and its first new token is about to be computed."""

    job_id: JobId
    prompt_tokens: int
    cached_tokens: int


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """New output: `token_ids` follow those sent before; `text` may lag behind them.

    Text is held back while it may still be part of a stop string or half a character.
    """

    job_id: JobId
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """The last event of a job. `token_ids` is the whole kept output, the authority over the deltas.

    It may be shorter than the deltas' ids where a stop string was found. `seam` says how it ends.
    `receipt` is None only when the job was never admitted.
    """

    job_id: JobId
    reason: FinishReason
    token_ids: tuple[int, ...]
    text: str
    """Text that no delta has sent yet."""
    seam: Seam
    receipt: Receipt | None = None
    refusal: Refusal | None = None


JobEvent = Started | Delta | Finished


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """`step` is the engine step after which the job computed nothing more.

    None: the job was not running (never known, or finished before).
    """

    job_id: JobId
    step: int | None


# ---------------------------------------------------------------- leases


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Whose blocks a wish is about. `OWNER` stands for everything in an owner's scope."""

    kind: SubjectKind
    subject_id: str
    owner_id: OwnerId


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Keep the subject's blocks in `retention` until told otherwise, or for `ttl_s` seconds.

    Each of the subject's turns opens the window of `ttl_s` anew; when it is over the subject is
    `RECENT` after its last turn, then `IDLE`, and nothing is let go by that. From `KEPT` on blocks
    are pinned, within a budget. Where that is spent, who is `imminent` (the next turn is being
    written) keeps what is his before others of the class.
    """

    retention: RetentionClass
    ttl_s: float | None = None
    imminent: bool = False


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag="forget"):
    """Let the subject go; blocks that nobody else refers to are zeroed and freed."""


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw"):
    """Forget what the subject will not go on from: its drafts, and branches that it has left."""


class Park(msgspec.Struct, frozen=True, kw_only=True, tag="park"):
    """Copy the subject's blocks to a lower tier soon; they stay in the pool while there is room."""


class Warm(msgspec.Struct, frozen=True, kw_only=True, tag="warm"):
    """Bring back what lies of the subject in lower tiers: its next turn is expected."""


Wish = Hold | Forget | Withdraw | Park | Warm


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish. It stands until it expires, granted or not."""

    subject: Subject
    wished: RetentionClass
    retention: RetentionClass
    """The class granted: a weaker one than `wished` while what is pinned fills the budget."""
    pinned_blocks: int = 0
    expires_s: float | None = None


# ---------------------------------------------------------------- what the engine tells of itself


class Stability(enum.StrEnum):
    """How far new messages rendered alone (STABLE) are the end of the whole rendering.

    APPENDABLE: but for dates and what replies begin with. UNSTABLE: each turn renders everything.
    """

    STABLE = "stable"
    APPENDABLE = "appendable"
    UNSTABLE = "unstable"


class TemplateFaultKind(enum.StrEnum):
    CLOCK = "clock"
    REASONING = "reasoning"
    THOUGHT = "thought"
    BOS = "bos"
    BORDER = "border"
    HISTORY = "history"
    REFUSED = "refused"


class TemplateFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why two renderings are not the same ids, where they first differ, and what each has there."""

    kind: TemplateFaultKind
    words: str
    position: int | None = None
    tokens: tuple[str, str] | None = None


class TemplateFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of the chat template found at load (law 3): of each kind the first fault."""

    stability: Stability
    faults: tuple[TemplateFault, ...] = ()
    calls: CallForm | None = None
    """None: replies can call no functions."""
    no_calls: str | None = None
    """Why they cannot, in words."""

    @property
    def reads_clock(self) -> bool:
        return any(fault.kind is TemplateFaultKind.CLOCK for fault in self.faults)


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model_fingerprint: str
    template_fingerprint: str
    boot_id: str
    context_tokens: int
    block_tokens: int
    pool_blocks: int
    kv_bytes_per_token: int
    dtype: str
    device: str
    attention: str
    vocabulary_tokens: int
    eos_token_ids: tuple[int, ...]
    template: TemplateFinding


@runtime_checkable
class Engine(Protocol):
    """What `app` may ask of an engine: these nine calls and no more.

    Raises `EngineLost` where the engine died and was not brought back, `EngineClosed` after
    `aclose`. Job-level refusals arrive as `Finished(reason=REFUSED)`.
    """

    async def info(self) -> ModelCard: ...

    async def render(self, request: RenderRequest) -> Rendered:
        """Text to ids for new messages only. Raises `Refused` when the template refuses them.

        `InvalidGrammar` when no reply can be held to the grammar that comes with them.
        """
        ...

    def generate(self, job: Job) -> AsyncGenerator[JobEvent, None]:
        """`Started`, any number of `Delta`, exactly one `Finished`; or only a refused `Finished`.

        A throw-away branch that has to give its memory back may be refused after it has started.
        Closing the generator cancels the job.
        """
        ...

    async def cancel(self, job_id: JobId) -> Cancelled:
        """Stop a job in any state; idempotent. Its iterator still ends in `Finished`."""
        ...

    async def lease(self, subject: Subject, wish: Wish) -> LeaseState: ...

    async def stats(self) -> Stats: ...

    async def snapshot(self, *, tree: bool = True) -> CacheSnapshot:
        """What the cache holds; without the prefix tree it is cheap enough to be asked for often."""
        ...

    def watch(self, after: int) -> AsyncIterator[CacheEvent]: ...

    async def aclose(self) -> None:
        """Refuse new jobs, cancel what runs, free everything. Idempotent."""
        ...


def zone_spans(zones: Sequence[Zone]) -> list[tuple[int, int, Zone]]:
    """`[start, end)` of each zone, in order."""
    starts = [0, *(zone.end for zone in zones[:-1])]
    return [(start, zone.end, zone) for start, zone in zip(starts, zones, strict=True)]
