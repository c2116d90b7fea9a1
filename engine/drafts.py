"""What drafts cost and what came of it: tokens computed for unsent text, used, wasted, waiting.

Knows the spans that a session's drafts have computed along their newest text, until the session's
next turn says how much of them it found, or the cache lets them go. Decides nothing. Law 5 for
figures: each token computed is in one place, used + wasted + waiting = computed.

    draft 1   [0 ...... 40) cached  [40 ........ 60) computed                40..60 wait
    draft 2   [0 ............. 52) cached  [52 ..... 70) computed            52..60 are wasted
    turn      [0 .................. 58) cached  [58 ...                      40..58 used, 58..70 wasted
"""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from engine.api import JobClass, Subject, SubjectKind
from engine.figures import DraftTokens
from engine.kv.cache import Cache
from engine.kv.pins import LeaseKey
from engine.kv.prefix import Ids, shared_tokens
from engine.sequence import Sequence

REMEMBERED_DRAFTS = 1024
"""Sessions with a draft that no turn has followed; of more, the oldest count as wasted."""

Spans = list[tuple[int, int]]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Spans that were computed along `ids`, which are the path from `start` on.

    `before`: a hash of what is before that. Text of drafts lies here no longer than in the cache's own
    index, and is forgotten with it.
    """

    start: int
    before: int
    ids: Ids
    spans: Spans

    def shared_with(self, ids: Ids) -> int:
        """Up to where a path is the draft's own; 0: it parts before anything was computed."""
        if hash(ids[: self.start].tobytes()) != self.before:
            return 0
        return self.start + shared_tokens(self.ids, ids[self.start :])

    def goes_through(self, ids: Ids, end: int) -> bool:
        """Whether the path whose last ids up to `end` these are is the draft's own, or goes on from it."""
        first, last = max(self.start, end - len(ids)), min(end, self.start + len(self.ids))
        origin = end - len(ids)
        own = self.ids[first - self.start : last - self.start]
        return first < last and own == ids[first - origin : last - origin]


class Drafts:
    """Books drafts as they end, and settles them as turns begin, or as the cache lets them go."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        cache.watch_orphans(self._lose)
        self._started = self._computed = self._used = self._wasted = 0
        self._drafts: OrderedDict[LeaseKey, Draft] = OrderedDict()

    def tokens(self) -> DraftTokens:
        return DraftTokens(
            started=self._started,
            computed=self._computed,
            used=self._used,
            wasted=self._wasted,
            waiting=self._computed - self._used - self._wasted,
        )

    def book(self, draft: Sequence, computed_tokens: int) -> None:
        """A draft has ended. It supersedes the session's draft before it."""
        held = self._cache.matched_tokens(draft.ids, draft.scopes, draft.progress.reached)
        spans = _clipped(_computed(draft), held)
        self._started += 1
        self._computed += computed_tokens
        self._wasted += computed_tokens - _tokens(spans)
        before = self._drafts.pop(draft.key, None)
        if before is not None:
            own = spans[0][0] if spans else draft.progress.reached
            kept = _clipped(before.spans, min(own, before.shared_with(draft.ids)))
            self._wasted += _tokens(before.spans) - _tokens(kept)
            spans = [*kept, *spans]
        if draft.forgotten or draft.job.session_id is None or not spans:
            self._wasted += _tokens(spans)
            return
        self._drafts[draft.key] = _draft(draft.ids, spans)
        if len(self._drafts) > REMEMBERED_DRAFTS:
            self._waste(next(iter(self._drafts)))

    def settle(self, turn: Sequence, cached_tokens: int) -> None:
        """A job begins; if it is a turn, what its session drafted is used now or never."""
        if turn.job.job_class is not JobClass.INTERACTIVE or turn.is_warm_up:
            return
        draft = self._drafts.pop(turn.key, None)
        if draft is not None:
            shared = min(cached_tokens, draft.shared_with(turn.ids))
            used = _tokens(_clipped(draft.spans, shared))
            self._used += used
            self._wasted += _tokens(draft.spans) - used

    def forget(self, subject: Subject) -> None:
        """The subject is forgotten, and its drafts with it."""
        whole = subject.kind is SubjectKind.OWNER
        for key in list(self._drafts):
            if key[0] == subject.owner_id and (whole or key[1] == subject.subject_id):
                self._waste(key)

    def _lose(self, key: LeaseKey, ids: Ids, lost: tuple[int, int]) -> None:
        """The cache let go of positions `[start, end)` of a path, whose last ids up to `end` these are."""
        draft = self._drafts.get(key)
        if draft is None or not draft.goes_through(ids, lost[1]):
            return
        spans = _clipped(draft.spans, lost[0])
        self._wasted += _tokens(draft.spans) - _tokens(spans)
        if spans:
            kept = draft.ids[: spans[-1][1] - draft.start]
            self._drafts[key] = msgspec.structs.replace(draft, ids=kept, spans=spans)
        else:
            del self._drafts[key]

    def _waste(self, key: LeaseKey) -> None:
        self._wasted += _tokens(self._drafts.pop(key).spans)


def _draft(ids: Ids, spans: Spans) -> Draft:
    start, end = spans[0][0], spans[-1][1]
    before = hash(ids[:start].tobytes())
    return Draft(start=start, before=before, ids=ids[start:end], spans=spans)


def _computed(draft: Sequence) -> Spans:
    """The parts of the prompt that were not found, as far as it got."""
    spans, position = [], 0
    for start, end in [*draft.progress.found, (draft.progress.reached, draft.progress.reached)]:
        if position < start:
            spans.append((position, start))
        position = end
    return spans


def _clipped(spans: Spans, end: int) -> Spans:
    return [(start, min(stop, end)) for start, stop in spans if start < end]


def _tokens(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)
