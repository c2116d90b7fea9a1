"""Who is here: users, their passwords and logins, and how the first admin comes to be.

A login is an opaque token in a cookie and a row here, so that it can be ended. The first admin is
made through one of three doors (a one-time link, the settings, a command); all pass one lock, so
there is exactly one first. Quotas, keys and what a role may do are decided elsewhere.
"""

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import Database, serialise
from app.db.models import Invitation, Login, User
from app.db.types import AccountRole, utc_now
from app.errors import Conflict, InvalidRequest, NotFound, Unauthenticated
from app.ids import KeyId, LoginId, UserId, new_login_id, new_user_id
from app.people.passwords import Passwords
from app.people.revocations import Revocations
from app.people.throttle import Claim, Throttle

IDLE = timedelta(days=14)
"""A login that is not used for so long ends."""
ABSOLUTE = timedelta(days=90)
"""A login ends after so long, however busy."""
_TOUCH = timedelta(minutes=5)
"""Being seen is written down at most this often."""
_LINK = timedelta(days=7)
_LONGEST_EMAIL = 254  # RFC 5321, 4.5.3.1.3, without the angle brackets
_LONGEST_NAME = 200


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and by which credential."""

    user_id: UserId
    role: AccountRole
    via: Literal["login", "key"]
    credential_id: LoginId | KeyId


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The token goes into the cookie and is never seen again."""

    token: str
    principal: Principal


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    id: UserId
    email: str
    name: str
    role: AccountRole


def new_secret() -> str:
    """256 random bits, in characters that need no quoting anywhere."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """What is stored of a secret. A plain hash does: 256 random bits cannot be guessed."""
    return hashlib.sha256(secret.encode()).digest()


def _spelled(email: str) -> str:
    return unicodedata.normalize("NFKC", email).strip().casefold()


def normal_email(email: str) -> str:
    """One spelling for each address. Raises `InvalidRequest` for what is none."""
    email = _spelled(email)
    if len(email) > _LONGEST_EMAIL or not re.fullmatch(r"[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+", email):
        raise InvalidRequest("This is not an e-mail address.", field="email")
    return email


class Accounts:
    def __init__(
        self,
        db: Database,
        *,
        passwords: Passwords | None = None,
        throttle: Throttle | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.revocations = Revocations()
        self._db = db
        self._passwords = passwords or Passwords()
        self._throttle = throttle or Throttle()
        self._now = now

    async def create_user(
        self, email: str, name: str, password: str, role: AccountRole = AccountRole.MEMBER
    ) -> UserId:
        """Raises `InvalidRequest` with the field, `Conflict` where the address is taken."""
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            return await self._add(session, email=email, name=name, encoded=encoded, role=role)

    async def account(self, user_id: UserId) -> AccountView:
        async with self._db.read() as session:
            return _view(await session.get(User, user_id))

    async def find(self, email: str) -> AccountView:
        """Raises `NotFound` where nobody has this address."""
        async with self._db.read() as session:
            return _view(await _by_email(session, email))

    async def list(self) -> list[AccountView]:
        """All accounts, the oldest first."""
        async with self._db.read() as session:
            found = await session.scalars(select(User).order_by(User.created_at, User.id))
            return [_view(user) for user in found]

    async def set_password(self, user_id: UserId, password: str) -> None:
        """Also ends every login of the account, on every device. Raises `NotFound`."""
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            query = update(User).where(User.id == user_id).values(password_hash=encoded)
            if await session.scalar(query.returning(User.id)) is None:
                raise NotFound("There is no such account.")
            await session.execute(delete(Login).where(Login.user_id == user_id))
        self.revocations.revoke(user_id)

    async def disable(self, user_id: UserId) -> None:
        """Shut the account out, with its logins and keys. Raises `Conflict` for the last admin."""
        async with self._db.begin() as session:
            await serialise(session, "admins")
            query = select(User.id).where(
                User.role == AccountRole.ADMIN, User.disabled_at.is_(None), User.id != user_id
            )
            user = await session.get(User, user_id)
            if user is None:
                raise NotFound("There is no such account.")
            if user.role is AccountRole.ADMIN and await session.scalar(query.limit(1)) is None:
                raise Conflict("The last admin cannot be disabled.")
            user.disabled_at = user.disabled_at or self._now()
            await session.execute(delete(Login).where(Login.user_id == user_id))
        self.revocations.revoke(user_id)

    async def login(self, email: str, password: str, *, user_agent: str, address: str) -> SignedIn:
        """Raises `Unauthenticated`, the same whoever it is, or `TooMany` with a time to wait."""
        account = _spelled(email)[:_LONGEST_EMAIL]
        pair = Claim(key=(account, address), free=5)
        wider = Claim(key=address, free=30), Claim(key=account, free=100)
        self._throttle.attempt(pair, *wider)
        async with self._db.read() as session:
            user = await _by_email(session, email)
        matches = await self._passwords.verify(user.password_hash if user else None, password)
        if user is None or not matches or user.disabled_at is not None:
            raise Unauthenticated("The address or the password is wrong.", code="bad_credentials")
        self._throttle.forget(pair)
        self._throttle.forgive(*wider)
        return await self._open_login(user, password, user_agent)

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

    async def logout(self, principal: Principal) -> None:
        async with self._db.begin() as session:
            await session.execute(delete(Login).where(Login.id == principal.credential_id))
        self.revocations.revoke(principal.credential_id)

    async def first_admin_link(self) -> str | None:
        """A new one-time token, which ends all earlier ones; None once there is an admin."""
        token, now = new_secret(), self._now()
        async with self._db.begin() as session:
            await serialise(session, "admins")
            if await _first_admin(session) is not None:
                return None
            await session.execute(delete(Invitation))
            session.add(
                Invitation(
                    token_digest=digest(token),
                    role=AccountRole.ADMIN,
                    created_at=now,
                    expires_at=now + _LINK,
                )
            )
        return token

    async def accept_invitation(self, token: str, email: str, name: str, password: str) -> UserId:
        """Make the account that the link stands for; of many who try at once, one does.

        Raises `Unauthenticated` for a link that is unknown, used or too old, and `InvalidRequest`
        with the field; a link that was refused for its input can be used again.
        """
        async with self._db.read() as session:
            # First whether it is a link at all: a hash is too dear to be had for nothing.
            await self._invitation(session, token)
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            await serialise(session, "admins")
            invitation = await self._invitation(session, token)
            invitation.used_at = self._now()
            return await self._add(
                session, email=email, name=name, encoded=encoded, role=invitation.role
            )

    async def ensure_admin(self, email: str, password: str) -> UserId:
        """Make the first admin unattended. Where there is one already, nothing is changed."""
        async with self._db.read() as session:
            admin_id = await _first_admin(session)
        if admin_id is not None:
            return admin_id
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            await serialise(session, "admins")
            await session.execute(delete(Invitation))
            return await _first_admin(session) or await self._add(
                session, email=email, name="Admin", encoded=encoded, role=AccountRole.ADMIN
            )

    async def _add(
        self, session: AsyncSession, *, email: str, name: str, encoded: str, role: AccountRole
    ) -> UserId:
        user = User(
            id=new_user_id(),
            email=normal_email(email),
            name=_normal_name(name),
            password_hash=encoded,
            role=role,
            created_at=self._now(),
        )
        session.add(user)
        try:
            await session.flush()
        except IntegrityError as error:
            raise Conflict("There is an account with this address.", field="email") from error
        return user.id

    async def _invitation(self, session: AsyncSession, token: str) -> Invitation:
        query = select(Invitation).where(
            Invitation.token_digest == digest(token),
            Invitation.used_at.is_(None),
            Invitation.expires_at > self._now(),
        )
        invitation = await session.scalar(query)
        if invitation is None or await _first_admin(session) is not None:
            raise Unauthenticated(
                "This link was used already, or a newer start of the server printed another.",
                code="invalid_link",
            )
        return invitation

    async def _open_login(self, user: User, password: str, user_agent: str) -> SignedIn:
        token, now = new_secret(), self._now()
        login = Login(
            id=new_login_id(),
            user_id=user.id,
            token_digest=digest(token),
            user_agent=user_agent.replace("\x00", "")[:400],
            created_at=now,
            last_seen_at=now,
            expires_at=now + IDLE,
        )
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
            await session.execute(delete(Login).where(Login.expires_at <= now))
            session.add(login)
        return SignedIn(token=token, principal=_principal(login, role))

    async def _touch(self, login: Login, now: datetime) -> None:
        expires_at = min(now + IDLE, login.created_at + ABSOLUTE)
        async with self._db.begin() as session:
            query = update(Login).where(Login.id == login.id)
            await session.execute(query.values(last_seen_at=now, expires_at=expires_at))


async def _by_email(session: AsyncSession, email: str) -> User | None:
    try:
        return await session.scalar(select(User).where(User.email == normal_email(email)))
    except InvalidRequest:
        return None


async def _first_admin(session: AsyncSession) -> UserId | None:
    query = select(User.id).where(User.role == AccountRole.ADMIN).order_by(User.created_at)
    return await session.scalar(query.limit(1))


def _alive(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return Login.expires_at > now, User.disabled_at.is_(None)


def _principal(login: Login, role: AccountRole) -> Principal:
    return Principal(user_id=login.user_id, role=role, via="login", credential_id=login.id)


def _view(user: User | None) -> AccountView:
    if user is None:
        raise NotFound("There is no such account.")
    return AccountView(id=user.id, email=user.email, name=user.name, role=user.role)


def _normal_name(name: str) -> str:
    name = " ".join(name.replace("\x00", "").split())
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise InvalidRequest(f"A name has 1 to {_LONGEST_NAME} characters.", field="name")
    return name
