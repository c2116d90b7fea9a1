"""Logins: who is signed in, on which device, and until when.

A login is an opaque token in a cookie and a row here, so that it can be listed and ended. Guessing a
password has to wait longer each time, at the door and where it is asked for again.
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import Database
from app.db.models import AuditEntry, Login, PasswordLink, User
from app.db.types import AccountRole, AuditAct, utc_now
from app.errors import Forbidden, NotFound, TooMany, Unauthenticated, Unavailable
from app.ids import LoginId, UserId, new_login_id
from app.people.accounts import (
    LONGEST_EMAIL,
    Accounts,
    Principal,
    by_email,
    digest,
    hold_user,
    new_secret,
    spelled,
)
from app.people.audit import note, note_failure
from app.people.rates import one_line
from app.people.throttle import FORGET_S, Claim, Throttle

IDLE = timedelta(days=14)
"""A login that is not used for so long ends."""
ABSOLUTE = timedelta(days=90)
"""A login ends after so long, however busy."""
FRESH = timedelta(minutes=10)
"""For so long signing in counts as having said who one is."""
_NO_TIME = timedelta()
"""Who signed in after now did so by another clock."""
_TOUCH = timedelta(minutes=5)
"""Being seen is written down at most this often."""


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The token goes into the cookie and is never seen again."""

    token: str
    principal: Principal


class LoginView(msgspec.Struct, frozen=True, kw_only=True):
    """`is_this_one`: by which its owner looks at it."""

    id: LoginId
    user_agent: str
    created_at: float
    last_seen_at: float
    expires_at: float
    is_this_one: bool


class Logins:
    def __init__(
        self, db: Database, accounts: Accounts, *, throttle: Throttle | None = None
    ) -> None:
        self._db = db
        self._passwords = accounts.passwords
        self._revocations = accounts.revocations
        self._now = accounts.now
        self._throttle = throttle or Throttle()

    async def login(self, email: str, password: str, *, user_agent: str, address: str) -> SignedIn:
        """Raises `Unauthenticated`, the same whoever it is, or `TooMany` with a time to wait."""
        pair, *wider = _claims(spelled(email)[:LONGEST_EMAIL], address)
        try:
            self._throttle.attempt(pair, *wider)
        except TooMany:
            if self._throttle.is_news(pair, *wider):
                await note_failure(self._db, AuditAct.LOGIN_LOCKED, None, address=address)
            raise
        async with self._db.read() as session:
            user = await by_email(session, email)
        matches = await self._passwords.verify(user.password_hash if user else None, password)
        if user is None or not matches or user.disabled_at is not None:
            user_id = None if user is None else user.id
            await note_failure(self._db, AuditAct.LOGIN_FAILED, user_id, address=address)
            raise Unauthenticated("The address or the password is wrong.", code="bad_credentials")
        self._throttle.forget(pair)
        self._throttle.forgive(*wider)
        return await self._by_password(user, password, user_agent)

    async def recall(self) -> None:
        """A restart lets nobody guess anew: what failed of late is in the audit log."""
        now = utc_now()
        since = now - timedelta(seconds=FORGET_S)
        signed_in = (
            select(Login.user_id, func.max(Login.created_at).label("at"))
            .group_by(Login.user_id)
            .subquery()
        )
        query = (
            select(AuditEntry.at, AuditEntry.details, User.id, User.email, signed_in.c.at)
            .outerjoin(User, User.id == AuditEntry.subject_id)
            .outerjoin(signed_in, signed_in.c.user_id == User.id)
            .where(AuditEntry.act == AuditAct.LOGIN_FAILED, AuditEntry.at > since)
            .order_by(AuditEntry.at, AuditEntry.id)
        )
        async with self._db.read() as session:
            failed = (await session.execute(query)).all()
        for at, details, user_id, email, came_in_at in failed:
            # One that a clock which was set back has still before it is not waited for.
            ago_s = max(0.0, (now - at).total_seconds())
            address = details.get("address")
            claims: tuple[Claim, ...]
            if email is None:
                claims = () if address is None else (_by_address(address),)
            elif address is None:
                claims = (_confirmation(user_id),)
            else:
                pair, *wider = _claims(email, address)
                is_over = came_in_at is not None and came_in_at > at
                claims = tuple(wider) if is_over else (pair, *wider)
            self._throttle.recall(ago_s, *claims)

    async def resolve(self, token: str) -> Principal:
        """Whose login this is; being used keeps it alive. Raises `Unauthenticated`."""
        now = self._now()
        async with self._db.read() as session:
            query = (
                select(Login, User.role)
                .join(User, User.id == Login.user_id)
                .where(Login.token_digest == digest(token), *_alive(now))
            )
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise Unauthenticated("You are not signed in.")
        login, role = row
        if now - login.last_seen_at >= _TOUCH:
            with contextlib.suppress(Unavailable):  # on a full disk one may still read
                await self._touch(login, now)
        return _principal(login, role)

    async def roles(self, login_ids: Sequence[LoginId]) -> dict[str, AccountRole]:
        """The roles behind those of the logins that still let somebody in."""
        query = (
            select(Login.id, User.role)
            .join(User, User.id == Login.user_id)
            .where(Login.id.in_(login_ids), *_alive(self._now()))
        )
        async with self._db.read() as session:
            return {str(id_): role for id_, role in await session.execute(query)}

    async def list(self, principal: Principal) -> list[LoginView]:
        """The user's own that still let them in, what was used last first."""
        query = select(Login).where(
            Login.user_id == principal.user_id, Login.expires_at > self._now()
        )
        async with self._db.read() as session:
            found = await session.scalars(query.order_by(Login.last_seen_at.desc(), Login.id))
            return [_view(login, principal) for login in found]

    async def logout(self, principal: Principal) -> None:
        async with self._db.begin() as session:
            await session.execute(delete(Login).where(Login.id == principal.credential_id))
        self._revocations.revoke(principal.credential_id)

    async def end(self, principal: Principal, login_id: LoginId) -> None:
        """Sign one of the user's devices out. Raises `NotFound` for what is not theirs."""
        query = delete(Login).where(Login.user_id == principal.user_id, Login.id == login_id)
        async with self._db.begin() as session:
            if await session.scalar(query.returning(Login.id)) is None:
                raise NotFound("There is no such login.", field="login_id")
            note(session, AuditAct.LOGIN_ENDED, principal.user_id, login_id=login_id)
        self._revocations.revoke(login_id)

    async def end_others(self, principal: Principal) -> None:
        """Sign the user out wherever else they are."""
        query = delete(Login).where(
            Login.user_id == principal.user_id, Login.id != principal.credential_id
        )
        owner = select(User.id).where(User.id == principal.user_id)
        async with self._db.begin() as session:
            # As whoever changes the password has it, and then ends the same logins.
            await session.execute(owner.with_for_update(key_share=True))
            ended = list(await session.scalars(query.returning(Login.id)))
        for login_id in ended:
            self._revocations.revoke(login_id)

    async def confirm(self, principal: Principal, password: str) -> str:
        """Ask for the password again; its hash. Raises `Forbidden`, or `TooMany` with a wait."""
        claim = _confirmation(principal.user_id)
        self._throttle.attempt(claim)
        async with self._db.read() as session:
            user = await session.get(User, principal.user_id)
        encoded = user.password_hash if user else None
        if encoded is None or not await self._passwords.verify(encoded, password):
            await note_failure(self._db, AuditAct.LOGIN_FAILED, principal.user_id)
            raise Forbidden(
                "The password is wrong.", code="wrong_password", field="current_password"
            )
        self._throttle.forget(claim)
        return encoded

    async def make_sure(self, principal: Principal, password: str | None) -> None:
        """Of who asks: by the password, or, where there is none, by a fresh login.

        Raises `Forbidden`, and `TooMany` with a wait.
        """
        async with self._db.read() as session:
            user = await session.get(User, principal.user_id)
            login = await session.get(Login, principal.credential_id)
        if user is None or user.password_hash:
            await self.confirm(principal, password or "")
        elif login is None or not _NO_TIME <= self._now() - login.created_at <= FRESH:
            raise Forbidden(
                "You signed in too long ago for this. Sign in again, and then ask again.",
                code="login_too_old",
            )

    async def change_password(self, principal: Principal, password: str, wanted: str) -> None:
        """Also signs the user out wherever else they are; their keys stay.

        Raises `Forbidden`, `TooMany` and `InvalidRequest`.
        """
        before = await self.confirm(principal, password)
        encoded = await self._passwords.hash(wanted)
        query = update(User).where(User.id == principal.user_id, User.password_hash == before)
        others = Login.user_id == principal.user_id, Login.id != principal.credential_id
        async with self._db.begin() as session:
            changed = query.values(password_hash=encoded).returning(User.id)
            if await session.scalar(changed) is None:
                raise Forbidden("The password changed meanwhile.", code="wrong_password")
            note(session, AuditAct.ACCOUNT_PASSWORD, principal.user_id)
            await session.execute(delete(Login).where(*others))
            links = delete(PasswordLink).where(PasswordLink.user_id == principal.user_id)
            await session.execute(links)
        self._revocations.revoke(principal.user_id)

    async def begin(self, user_id: UserId, *, user_agent: str) -> SignedIn:
        """The first login of an account that its owner has just made.

        No password is asked for again, so no guesses of others hold it back. Raises
        `Unauthenticated` where the account is gone already.
        """
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            user = await session.get(User, user_id)
            if user is None or user.disabled_at is not None:
                raise Unauthenticated("This account is gone.")
            return await self.open(session, user_id, user.role, user_agent=user_agent)

    async def open(
        self, session: AsyncSession, user_id: UserId, role: AccountRole, *, user_agent: str
    ) -> SignedIn:
        """A new login in the caller's transaction, which has made sure whom it is for."""
        token, now = new_secret(), self._now()
        login = Login(
            id=new_login_id(),
            user_id=user_id,
            token_digest=digest(token),
            user_agent=user_agent.replace("\x00", "")[:400],
            created_at=now,
            last_seen_at=now,
            expires_at=now + IDLE,
        )
        old = select(Login.id).where(Login.expires_at <= now).with_for_update(skip_locked=True)
        await session.execute(delete(Login).where(Login.id.in_(old)))
        session.add(login)
        return SignedIn(token=token, principal=_principal(login, role))

    async def _by_password(self, user: User, password: str, user_agent: str) -> SignedIn:
        encoded = user.password_hash
        if self._passwords.is_outdated(encoded):
            encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            # The password that was checked must still be the account's, or its owner changed it.
            query = (
                update(User)
                .where(User.id == user.id, User.password_hash == user.password_hash)
                .where(User.disabled_at.is_(None))
                .values(password_hash=encoded)
                .returning(User.role)
            )
            role = await session.scalar(query)
            if role is None:
                raise Unauthenticated("The account changed; try again.", code="bad_credentials")
            return await self.open(session, user.id, role, user_agent=user_agent)

    async def _touch(self, login: Login, now: datetime) -> None:
        expires_at = min(now + IDLE, login.created_at + ABSOLUTE)
        async with self._db.begin() as session:
            query = update(Login).where(Login.id == login.id)
            await session.execute(query.values(last_seen_at=now, expires_at=expires_at))


def _claims(account: str, address: str) -> tuple[Claim, Claim, Claim]:
    """Guesses of one visitor at one account; of a visitor; at an account."""
    pair = Claim(key=(account, one_line(address)), free=5)
    return pair, _by_address(address), Claim(key=account, free=100)


def _by_address(address: str) -> Claim:
    return Claim(key=one_line(address), free=30)


def _confirmation(user_id: UserId) -> Claim:
    return Claim(key=user_id, free=5)


def _alive(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return Login.expires_at > now, User.disabled_at.is_(None)


def _principal(login: Login, role: AccountRole) -> Principal:
    return Principal(user_id=login.user_id, role=role, via="login", credential_id=login.id)


def _view(login: Login, principal: Principal) -> LoginView:
    return LoginView(
        id=login.id,
        user_agent=login.user_agent,
        created_at=login.created_at.timestamp(),
        last_seen_at=login.last_seen_at.timestamp(),
        expires_at=login.expires_at.timestamp(),
        is_this_one=login.id == principal.credential_id,
    )
