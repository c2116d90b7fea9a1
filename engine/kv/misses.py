"""Why a turn computed more than its new part: one pure function.

Knows ids, fingerprints and the cache's last loss; knows no block and no tree. The reason given is
the one that explains the first computed token: where it differs from what the conversation sent
before, the change is the reason; where it is the same, the cache let it go.
"""

from collections.abc import Sequence

import msgspec

from engine.api import History, MissReason


class Fingerprints(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine it was: its weights, its rendering, its life."""

    model_fingerprint: str
    template_fingerprint: str
    boot_id: str


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn asked for and what the cache had. `loss`: why this session last lost blocks.

    Up to `unused_tokens` of a known prefix may go unused though nobody let them go.
    """

    token_ids: tuple[int, ...]
    cached_tokens: int
    unused_tokens: int
    fingerprints: Fingerprints
    loss: MissReason | None


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    reason: MissReason | None
    differs_at: int | None


def explain(history: History | None, lookup: Lookup) -> Miss:
    """The reason and the first position at which the prompt leaves the history, if it does."""
    if history is None:
        return Miss(reason=MissReason.FIRST_TURN, differs_at=None)
    common = common_tokens(history.token_ids, lookup.token_ids)
    departs = common < min(len(history.token_ids), len(lookup.token_ids))
    differs_at = common if departs else None
    if not departs and lookup.cached_tokens >= common - 1:
        return Miss(reason=None, differs_at=None)
    if lookup.cached_tokens < common - 1:
        return Miss(reason=_lost(history, lookup, common), differs_at=differs_at)
    return Miss(reason=_changed(history, lookup, common), differs_at=differs_at)


def common_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids are equal."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(at for at in range(shorter) if left[at] != right[at])


def _changed(history: History, lookup: Lookup, differs_at: int) -> MissReason:
    rendering = _rendering_changed(history, lookup)
    if rendering is not None:
        return rendering
    if history.forked:
        return MissReason.NEW_BRANCH
    if differs_at < history.head_end:
        return MissReason.INSTRUCTIONS_CHANGED
    return MissReason.INPUT_CHANGED


def _lost(history: History, lookup: Lookup, common: int) -> MissReason:
    rendering = _rendering_changed(history, lookup)
    if rendering is not None:
        return rendering
    if history.boot_id != lookup.fingerprints.boot_id:
        return MissReason.ENGINE_RESTART
    if lookup.loss is not None:
        return lookup.loss
    if common - lookup.cached_tokens <= lookup.unused_tokens:
        return MissReason.BELOW_GRANULARITY
    # Nobody saw it go (a job without a session): only pressure lets unleased blocks go.
    return MissReason.EVICTED_PRESSURE


def _rendering_changed(history: History, lookup: Lookup) -> MissReason | None:
    if history.model_fingerprint != lookup.fingerprints.model_fingerprint:
        return MissReason.MODEL_CHANGED
    if history.template_fingerprint != lookup.fingerprints.template_fingerprint:
        return MissReason.TEMPLATE_CHANGED
    return None
