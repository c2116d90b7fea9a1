"""What each user has used: counted when a turn is let in, and when it has ended.

    let in    one request more; its tokens are held; what it stores is added
    ended     the hold goes; its tokens and its reply's bytes are added

All in the transaction that stores the turn (which may have a thread of its own), under the lock of
the user's meter, so that of turns that come at once no more are let in than a quota allows, and what
is refused leaves nothing. Holds are in memory: there is one server, and with it they go. What a user
stores is a running sum, corrected by whoever adds or deletes.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    Row,
    bindparam,
    case,
    event,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.db.base import Database, upsert
from app.db.models import Base, Conversation, Meter, Response, UsageDay
from app.db.types import QuotaKind
from app.ids import ConversationId, ResponseId, UserId
from app.people import rates
from app.people.quotas import Limit, Quotas, midnight, refusal, today


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that wants to be let in."""

    response_id: ResponseId
    user_id: UserId
    key_id: str
    """Empty for what came by a login."""
    model: str
    held_tokens: int
    """The most that it may take, as far as that is known."""
    stored_bytes: int


class _Hold(msgspec.Struct):
    """A turn that was let in."""

    ask: Ask
    besides: int
    """What it takes along of drafts and titles, as long as that may come to nothing."""

    def keep(self) -> None:
        """What it took along is counted for good."""
        self.besides = 0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn came to."""

    computed_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def counted_tokens(self) -> int:
        """What was found warm costs nothing."""
        return self.computed_tokens + self.output_tokens


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a quota is used."""

    kind: QuotaKind
    used: int | None
    """None for `kept_warm_bytes` while the engine is away: it knows how many bytes a token has."""
    allowed: int | None
    source: str
    group_id: str | None
    resets_at: float | None


class DayOfUse(msgspec.Struct, frozen=True, kw_only=True):
    """A user's ended turns of one day of UTC, by model and key; `key_id` is None for the page's."""

    day: str
    model: str
    key_id: str | None
    requests: int
    computed_tokens: int
    cached_tokens: int
    output_tokens: int


class Usage:
    """One per server."""

    def __init__(self, db: Database, quotas: Quotas) -> None:
        self.quotas = quotas
        self._rates = rates.Rates()
        self._db = db
        self._holds: dict[ResponseId, _Hold] = {}
        self._adding = threading.Lock()
        self._besides = Counter[UserId]()
        """Tokens of drafts and titles, until the next message takes them along."""
        self.seats: dict[UserId, int] = {}
        """Open sockets and event streams, which the gate counts."""

    # ------------------------------------------------------------ how often

    def begins(self, user_id: UserId) -> None:
        """A turn or a conversation. Raises `TooMany`."""
        self._rates.take(rates.CREATES_PER_USER, user_id)

    def stops(self, user_id: UserId) -> None:
        """An answer. Raises `TooMany`."""
        self._rates.take(rates.CANCELS_PER_USER, user_id)

    def pins(self, user_id: UserId) -> None:
        """A conversation, which is to be kept warm. Raises `TooMany`."""
        self._rates.take(rates.PINS_PER_USER, user_id)

    def knocks(self, address: str) -> None:
        """Somebody there wants a socket. Raises `TooMany`."""
        self._rates.take(rates.HANDSHAKES_PER_ADDRESS, address)

    def opens(self, user_id: UserId) -> None:
        """A socket. Raises `TooMany`."""
        self._rates.take(rates.HANDSHAKES_PER_USER, user_id)

    # ------------------------------------------------------------ turns

    def admit(self, session: Session, ask: Ask) -> None:
        """Count a turn, and hold what it may take. Raises `QuotaExceeded`.

        Whatever becomes of the transaction, it is to be released.
        """
        self.release(ask.response_id)  # by an attempt before this one
        with self._adding:
            besides = self._besides.pop(ask.user_id, 0)
        try:
            self._check(session, ask, besides)
        except BaseException:
            self.besides(ask.user_id, besides)
            raise
        held = self._holds[ask.response_id] = _Hold(ask, besides)
        event.listen(session, "after_commit", lambda _: held.keep(), once=True)

    def _check(self, session: Session, ask: Ask, besides: int) -> None:
        meter = self._count(session, ask.user_id, ask.stored_bytes, requests=1, tokens=besides)
        now = self.quotas.now()
        limits = self.quotas.limits(session, ask.user_id)
        held = self._held_by(ask.user_id)
        tokens = meter.tokens + sum(one.held_tokens for one in held) + ask.held_tokens
        for kind, amount in (
            (QuotaKind.REQUESTS, meter.requests),
            (QuotaKind.TOKENS, tokens),
            (QuotaKind.GENERATIONS, len(held) + 1),
            (QuotaKind.STORED, meter.stored_bytes if ask.stored_bytes else 0),
        ):
            allowed = limits[kind].allowed
            if allowed is not None and amount > allowed:
                raise refusal(kind, allowed, now)

    async def let_in(self, ask: Ask) -> None:
        """`admit` for what is not stored."""
        await self._db.note(lambda session: self.admit(session, ask))

    def release(self, response_id: ResponseId) -> None:
        """It does not run (any more)."""
        held = self._holds.pop(response_id, None)
        if held is not None:
            self.besides(held.ask.user_id, held.besides)

    def settle(
        self, session: Session, response_id: ResponseId, cost: Cost, stored_bytes: int = 0
    ) -> None:
        """Count what a turn came to; `release` it when that is committed.

        Of a user who was removed meanwhile nothing is counted.
        """
        held = self._holds.get(response_id)
        if held is None:
            return
        ask = held.ask
        day = today(self.quotas.now())
        values = {
            "stored_bytes": Meter.stored_bytes + stored_bytes,
            "requests": _of_day(Meter.requests, day),
            "tokens": _of_day(Meter.tokens, day) + cost.counted_tokens,
            "day": day,
        }
        query = update(Meter).where(Meter.user_id == ask.user_id).values(values)
        if session.scalar(query.returning(Meter.user_id)) is not None:
            _write_down(session, ask, day, cost)

    async def leave(self, response_id: ResponseId, cost: Cost) -> None:
        """`settle` and `release` for what is not stored."""
        await self._db.note(lambda session: self.settle(session, response_id, cost))
        self.release(response_id)

    def _held_by(self, user_id: UserId) -> Sequence[Ask]:
        return [held.ask for held in list(self._holds.values()) if held.ask.user_id == user_id]

    # ------------------------------------------------------------ besides turns

    def besides(self, user_id: UserId, tokens: int) -> None:
        """Computed of what somebody types, for a title, or for a summary that came to nothing.

        It counts for the day once they send something.
        """
        if tokens:
            with self._adding:
                self._besides[user_id] += tokens

    async def may_draft(self, user_id: UserId) -> bool:
        """Whether anything is left of the day's tokens."""
        return await self._db.look(lambda session: self._may_draft(session, user_id))

    def _may_draft(self, session: Session, user_id: UserId) -> bool:
        allowed = self.quotas.limits(session, user_id)[QuotaKind.TOKENS].allowed
        if allowed is None:
            return True
        day = today(self.quotas.now())
        used = select(Meter.tokens).where(Meter.user_id == user_id, Meter.day == day)
        return (session.scalar(used) or 0) + self._besides[user_id] < allowed

    def forget_user(self, user_id: UserId) -> None:
        self._besides.pop(user_id, None)

    # ------------------------------------------------------------ what is stored

    def store(self, session: Session, user_id: UserId, added_bytes: int) -> None:
        """Count what is stored otherwise than by a turn. Raises `QuotaExceeded`."""
        meter = self._count(session, user_id, added_bytes)
        allowed = self.quotas.limits(session, user_id)[QuotaKind.STORED].allowed
        if allowed is not None and meter.stored_bytes > allowed:
            raise refusal(QuotaKind.STORED, allowed, self.quotas.now())

    def _count(
        self,
        session: Session,
        user_id: UserId,
        added_bytes: int,
        *,
        requests: int = 0,
        tokens: int = 0,
    ) -> Row[int, int, int]:
        """The meter with this added, locked until the transaction ends."""
        asked = {
            "user": user_id,
            "today": today(self.quotas.now()),
            "stored": added_bytes,
            "asked": requests,
            "spent": tokens,
        }
        return session.execute(_COUNT[session.get_bind().dialect.name], asked).one()

    def check_kept(
        self,
        session: Session,
        user_id: UserId,
        kv_bytes_per_token: int,
        held: Mapping[ConversationId, int],
    ) -> None:
        """Whether a user may keep warm what is marked so, and `held`. Raises `QuotaExceeded`."""
        allowed = self.quotas.limits(session, user_id)[QuotaKind.KEPT_WARM].allowed
        if allowed is None:
            return
        tokens = _kept_tokens(session, user_id, held) + sum(held.values())
        if tokens * kv_bytes_per_token > allowed:
            raise refusal(QuotaKind.KEPT_WARM, allowed, self.quotas.now())

    async def kept_tokens(self, user_id: UserId, besides: Collection[ConversationId]) -> int:
        """How long what a user has marked to be kept warm is, without those."""
        async with self._db.read() as session:
            return await session.run_sync(_kept_tokens, user_id, besides)

    # ------------------------------------------------------------ how it stands

    async def of(self, user_id: UserId, kept_bytes: int | None = None) -> tuple[Used, ...]:
        """Each quota of a user, with what is used of it; whoever knows says what is kept warm."""
        async with self._db.read() as session:
            meter = await session.get(Meter, user_id)
            limits = await session.run_sync(self.quotas.limits, user_id)
        used = self._amounts(user_id, meter) | {QuotaKind.KEPT_WARM: kept_bytes}
        return tuple(self._used(kind, used[kind], limits[kind]) for kind in QuotaKind)

    def _amounts(self, user_id: UserId, meter: Meter | None) -> dict[QuotaKind, int | None]:
        of_today = meter is not None and meter.day == today(self.quotas.now())
        return {
            QuotaKind.REQUESTS: meter.requests if meter and of_today else 0,
            QuotaKind.TOKENS: (meter.tokens if meter and of_today else 0) + self._besides[user_id],
            QuotaKind.GENERATIONS: len(self._held_by(user_id)),
            QuotaKind.SOCKETS: self.seats.get(user_id, 0),
            QuotaKind.STORED: meter.stored_bytes if meter else 0,
        }

    def _used(self, kind: QuotaKind, used: int | None, limit: Limit) -> Used:
        return Used(
            kind=kind,
            used=used,
            allowed=limit.allowed,
            source=limit.source,
            group_id=limit.group_id,
            resets_at=midnight(self.quotas.now()).timestamp() if kind.is_daily else None,
        )

    async def days(self, user_id: UserId, since: str) -> Sequence[DayOfUse]:
        """Day by day from `since` (as `2026-12-31`) on, the newest first."""
        query = (
            select(UsageDay)
            .where(UsageDay.user_id == user_id, UsageDay.day >= since)
            .order_by(UsageDay.day.desc(), UsageDay.model, UsageDay.key_id)
        )
        async with self._db.read() as session:
            return [day_of_use(row) for row in await session.scalars(query)]


def day_of_use(row: UsageDay) -> DayOfUse:
    return DayOfUse(
        day=row.day,
        model=row.model,
        key_id=row.key_id or None,
        requests=row.requests,
        computed_tokens=row.computed_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
    )


def _kept_tokens(session: Session, user_id: UserId, besides: Collection[ConversationId]) -> int:
    """How long the shown branches of what a user keeps warm are, as far as they were computed."""
    query = select(Response.usage).join(Conversation, Conversation.leaf_id == Response.message_id)
    theirs = Conversation.user_id == user_id, Conversation.kept_warm
    found = session.scalars(query.where(*theirs, Conversation.id.not_in(besides)))
    return sum(used.input_tokens + used.output_tokens for used in found if used is not None)


def correct(session: Session, user_id: UserId, added_bytes: int) -> None:
    """What a user stores is so much more, or (negative) less, whatever their quota says."""
    query = update(Meter).where(Meter.user_id == user_id)
    session.execute(query.values(stored_bytes=Meter.stored_bytes + added_bytes))


def _of_day(
    column: InstrumentedAttribute[int], day: str | BindParameter[str]
) -> ColumnElement[int]:
    """What a meter shows on that day."""
    return case((Meter.day == day, column), else_=0)


def _counting(insert: postgresql.Insert | sqlite.Insert) -> Executable:
    added: BindParameter[int] = bindparam("stored")
    asked: BindParameter[int] = bindparam("asked")
    spent: BindParameter[int] = bindparam("spent")
    day: BindParameter[str] = bindparam("today")
    query = insert.values(
        user_id=bindparam("user"), stored_bytes=added, day=day, requests=asked, tokens=spent
    )
    query = query.on_conflict_do_update(
        index_elements=["user_id"],
        set_={
            "stored_bytes": Meter.stored_bytes + added,
            "requests": _of_day(Meter.requests, day) + asked,
            "tokens": _of_day(Meter.tokens, day) + spent,
            "day": day,
        },
    )
    return query.returning(_METER.c.stored_bytes, _METER.c.requests, _METER.c.tokens)


_METER = Base.metadata.tables[Meter.__tablename__]
_COUNT = {
    "postgresql": _counting(postgresql.insert(_METER)),
    "sqlite": _counting(sqlite.insert(_METER)),
}
"""Built once, and into the table: every turn counts, and no session knows what comes of it."""


def _write_down(session: Session, ask: Ask, day: str, cost: Cost) -> None:
    new = {
        "requests": 1,
        "computed_tokens": cost.computed_tokens,
        "cached_tokens": cost.cached_tokens,
        "output_tokens": cost.output_tokens,
    }
    named = {"user_id": ask.user_id, "day": day, "model": ask.model, "key_id": ask.key_id}
    query = upsert(session, UsageDay).values(**named, **new)
    query = query.on_conflict_do_update(
        index_elements=list(named),
        set_={name: getattr(UsageDay, name) + amount for name, amount in new.items()},
    )
    session.execute(query)
