"""What the engine tells of itself: counters, histograms, a snapshot of the cache and its events.

Part of the contract. Sizes, classes and reasons only: never a token id, never text. They are of all
users together, so whoever shows them shows them to administrators (law 11).

Counters count since boot and are never ratios; readers divide. What is summed over turns equals
the sum over their receipts. There is no counter of near misses, prefixes shared and not used for being
shorter than a block: a match ends at the token where paths part. Only the deterministic mode goes
back to a border, and the receipt of such a turn says `below_granularity`.
"""

import enum

import msgspec

from engine.terms import (
    CacheSource,
    FinishReason,
    MissReason,
    OwnerId,
    RetentionClass,
    Scope,
    SessionId,
    SubjectKind,
    Tier,
)


class BlockCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks by state; the states sum to `total` after every operation (law 5)."""

    in_use: int
    copying: int
    pinned: int
    cached: int
    free: int

    @property
    def total(self) -> int:
        return self.in_use + self.copying + self.pinned + self.cached + self.free


class TierCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a lower tier holds now, and how much it may."""

    tier: Tier
    segments: int
    used_bytes: int
    limit_bytes: int


class CachedBySource(msgspec.Struct, frozen=True, kw_only=True):
    """Cached prompt tokens by whose zone they lie in; they sum to all that were cached."""

    template: int = 0
    persona: int = 0
    document: int = 0
    session: int = 0


# ---------------------------------------------------------------- counters


class EvictionReason(enum.StrEnum):
    """Why blocks left the pool.

    PRESSURE: others needed the room, and these went first. QUOTA: the same, of a lease that would
    have pinned them had the budget allowed it. FORGOTTEN: whoever they belonged to wanted it.
    """

    PRESSURE = "pressure"
    QUOTA = "quota"
    FORGOTTEN = "forgotten"


class Evictions(msgspec.Struct, frozen=True, kw_only=True):
    """What left the pool out of one retention class for one reason, parked elsewhere or not."""

    retention: RetentionClass
    reason: EvictionReason
    blocks: int
    tokens: int


class DraftTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that were `computed` for drafts, and what came of them: the other three sum to it.

    `started`: how many drafts they were computed for, each longer text of one message anew.

    `used`: the session's next turn found them cached. `wasted`: a later draft or that turn went
    another way, or they were evicted or forgotten before it came. `waiting`: it is still to come.
    """

    started: int
    computed: int
    used: int
    wasted: int
    waiting: int


class TurnTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Turns and their prompts, summed.

    `known_tokens`: what of the prompts their conversations had sent or got before; `found_tokens`:
    how much of that was cached. Had nothing been let go, each later turn would find all but one token.
    """

    turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    known_tokens: int = 0
    found_tokens: int = 0


class CachedShare(enum.StrEnum):
    """How much of a prompt was cached: nothing, below half, below nine tenths, more."""

    NOTHING = "0"
    SOME = "<0.5"
    MOST = "<0.9"
    NEARLY_ALL = "<1"


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """`counts[i]` values were at most `bounds[i]` and above the bound before; the last had none."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """`held_bytes`: what the engine took for weights, KV and its work; others may hold some too."""

    name: str
    held_bytes: int
    free_bytes: int
    total_bytes: int


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The machine now.

    `resident_bytes`: what the engine's process holds of its memory, where the system tells it.
    `gpu`: where it computes on one; the first of those that share a model.
    """

    processor: str
    resident_bytes: int | None
    free_bytes: int
    machine_bytes: int
    gpu: Gpu | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since boot and gauges of now; readers divide.

    Jobs of the engine's own (what a wish brings back from a lower tier) have no receipt and are not
    counted, but for their time and the segments that they move.
    """

    boot_id: str
    restarts: int = 0
    """Of the engine's process, which all other counters begin anew with."""
    steps: int
    running_jobs: int
    waiting_jobs: int
    blocks: BlockCounts
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    restored_tokens: int
    """Of the cached tokens, those that came back from a lower tier."""
    output_tokens: int
    prompt_by_source: dict[CacheSource, int]
    cached_by_source: CachedBySource
    first_turns: TurnTokens
    """Turns (interactive jobs) of which the conversation had nothing before."""
    later_turns: TurnTokens
    saved_s: float
    """What computing the cached tokens would have taken, by what prefill was measured to take; an
    estimate, without what came before the first measurement."""
    finished_jobs: dict[FinishReason, int]
    misses: dict[MissReason, int]
    """Turns by the reason of their receipts."""
    published_tokens: int
    """Tokens that became matchable; less what was evicted they are what is matchable now."""
    evictions: tuple[Evictions, ...]
    regretted_tokens: int
    """Tokens that were evicted, and missing in a prompt within ten minutes: a lower bound."""
    tiers: tuple[TierCounts, ...]
    """The lower tiers that are used."""
    segments: "dict[CacheChange, int]"
    """Segments of lower tiers by what became of them: parked, spilled, restored and so on."""
    degradations: int
    """How often a lease was not granted the pin that it wished for, or had to give it back."""
    drafts: DraftTokens
    preemptions: int
    queue_s: Histogram
    """Of turns (interactive jobs), like the two that follow."""
    prefill_s: Histogram
    first_token_s: dict[CachedShare, Histogram]
    """By how much of the prompt was cached."""
    step_s: float
    cache_s: float
    """Time spent in the cache's own work (acquire, publish, release, evict)."""
    hardware: Hardware | None = None
    """None: the engine has no machine of its own to tell of."""

    @property
    def evicted_blocks(self) -> int:
        """Blocks that had to go to make room."""
        forgotten = EvictionReason.FORGOTTEN
        return sum(one.blocks for one in self.evictions if one.reason is not forgotten)


# ---------------------------------------------------------------- the cache as it is now


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session that a lease or a lower tier knows, with the length of its longest path in each."""

    session_id: SessionId
    owner_id: OwnerId
    wished: RetentionClass | None
    """The class that was asked for; None: it is kept by its last turn alone."""
    retention: RetentionClass
    """The class granted; ORPHAN where only a lower tier knows it."""
    expires_in_s: float | None
    """When the wish ends, if it does by itself."""
    idle_s: float | None
    """Since its last turn; None: that was before this boot, or before all of it was evicted."""
    cached_tokens: int
    blocks: int = 0
    """Of the pool, that its paths run through."""
    shared_blocks: int = 0
    """Of these, those that hold the operator's text alone, which others run through as well."""
    host_tokens: int = 0
    disk_tokens: int = 0

    @property
    def pins(self) -> bool:
        """Whether its blocks are pinned; what is degraded is not."""
        return self.retention >= RetentionClass.KEPT

    @property
    def tier(self) -> Tier:
        """The fastest one that has all that any has."""
        most = max(self.cached_tokens, self.host_tokens, self.disk_tokens)
        if self.cached_tokens == most:
            return Tier.DEVICE
        return Tier.HOST if self.host_tokens == most else Tier.DISK


class PrefixNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the prefix tree: sizes only, never text or ids.

    `retention` is the highest class here and below: so long it stays (law 9). `hits`: prompts that
    were found to go through it. `paths`: ends of leased paths here and below.
    """

    node_id: int
    parent_id: int | None
    kind: SubjectKind | None = None
    """Of whose leased path ends here: a persona's or a document's, else a session's."""
    subject_id: str | None = None
    owner_id: OwnerId | None = None
    scope: Scope
    tokens: int
    blocks: int
    in_use: bool
    retention: RetentionClass
    hits: int
    paths: int
    idle_s: float
    """Since a sequence last went through it."""


class CacheSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the cache holds; events numbered above `sequence_number` came later.

    Where it was asked for without the prefix tree, `nodes` and `pinned_blocks` are empty.
    """

    sequence_number: int
    blocks: BlockCounts
    pinned_blocks: dict[RetentionClass, int]
    """Each pinned block, in use or not, in the strongest class that pins it."""
    tiers: tuple[TierCounts, ...]
    sessions: tuple[SessionView, ...]
    nodes: tuple[PrefixNode, ...]


class CacheChange(enum.StrEnum):
    """What can happen to what is cached.

    In the pool PUBLISHED, EVICTED, FORGOTTEN; to leases LEASED (a wish was carried out) and DEGRADED
    (a pin was refused or taken back for want of budget); to segments of lower tiers the others. DAMAGED: it
    did not read back as it was written, or was of other weights.
    FAILED: it could not be written. LET_GO: it left its last tier.
    """

    PUBLISHED = "published"
    EVICTED = "evicted"
    FORGOTTEN = "forgotten"
    LEASED = "leased"
    DEGRADED = "degraded"
    PARKED = "parked"
    SPILLED = "spilled"
    RESTORED = "restored"
    DAMAGED = "damaged"
    FAILED = "failed"
    LET_GO = "let_go"


SEGMENT_CHANGES = tuple(CacheChange)[list(CacheChange).index(CacheChange.PARKED) :]
"""What happens to segments."""


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something changed in the cache, which is now as `blocks` says.

    Numbers follow each other. One that does not follow the last (a reader was too slow, or the
    engine has started again) means: take a snapshot.
    """

    sequence_number: int
    kind: CacheChange
    scope: Scope | None
    tokens: int
    blocks: BlockCounts
    retention: RetentionClass | None = None
    """Of what was evicted or forgotten; the class granted, and of what is degraded the wished one."""
    reason: EvictionReason | None = None
    tier: Tier | None = None
    """The lower tier that a segment was written to, read from or dropped from."""
