"""Who is here: users, their passwords and roles, and that there is always an admin.

An account is made by a command, by an invitation or by the settings, never by a stranger. Whatever
could take the last admin away (disabling, another role, removal) passes one lock with whatever makes
the first, so that there is never none. Logins, keys and groups are decided elsewhere.
"""

import hashlib
import re
import secrets
import unicodedata
from collections.abc import Callable
from datetime import datetime
from typing import Literal

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from app.db.base import Database, serialise
from app.db.models import Departure, Login, PasswordLink, User
from app.db.types import AccountRole, AuditAct, KeyScope, utc_now
from app.errors import Conflict, InvalidRequest, NotFound
from app.ids import KeyId, LoginId, UserId, new_user_id
from app.people.audit import note
from app.people.passwords import Passwords
from app.people.revocations import Revocations

ADMINS = "admins"
"""The lock of whatever makes the first admin or could take away the last."""
LONGEST_EMAIL = 254  # RFC 5321, 4.5.3.1.3, without the angle brackets
LONGEST_NAME = 200


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and by which credential."""

    user_id: UserId
    role: AccountRole
    via: Literal["login", "key"]
    credential_id: LoginId | KeyId
    scopes: tuple[KeyScope, ...] = tuple(KeyScope)
    """What the credential is for; a login is for all."""

    @property
    def key_id(self) -> str:
        """Empty for a login."""
        return self.credential_id if self.via == "key" else ""

    @property
    def may_chat(self) -> bool:
        """Whether the model answers them; auditors look at figures and at nothing else."""
        return self.role is not AccountRole.AUDITOR

    @property
    def sees_figures(self) -> bool:
        """What is counted over all users."""
        return self.role in (AccountRole.ADMIN, AccountRole.AUDITOR)


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    id: UserId
    email: str
    name: str
    role: AccountRole
    created_at: float
    is_disabled: bool
    has_password: bool
    """False for who only ever came by a provider."""


def new_secret() -> str:
    """256 random bits, in characters that need no quoting anywhere."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """What is stored of a secret. A plain hash does: 256 random bits cannot be guessed."""
    return hashlib.sha256(secret.encode()).digest()


def spelled(email: str) -> str:
    return unicodedata.normalize("NFKC", email).strip().casefold()


def normal_email(email: str) -> str:
    """One spelling for each address. Raises `InvalidRequest` for what is none."""
    email = spelled(email)
    if len(email) > LONGEST_EMAIL or not re.fullmatch(r"[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+", email):
        raise InvalidRequest("This is not an e-mail address.", field="email")
    return email


def normal_name(name: str) -> str:
    """In one line. Raises `InvalidRequest` for one that is empty or too long."""
    name = " ".join(name.replace("\x00", "").split())
    if not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidRequest(f"A name has 1 to {LONGEST_NAME} characters.", field="name")
    return name


class Accounts:
    """`revocations` tells of what changes here; `passwords` and `now` are everybody's in `people`."""

    def __init__(
        self,
        db: Database,
        *,
        passwords: Passwords | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.revocations = Revocations()
        self.passwords = passwords or Passwords()
        self.now = now
        self._db = db

    async def create_user(
        self, email: str, name: str, password: str, role: AccountRole = AccountRole.MEMBER
    ) -> UserId:
        """Raises `InvalidRequest` with the field, `Conflict` where the address is taken."""
        encoded = await self.passwords.hash(password)
        async with self._db.begin() as session:
            return await self.add(session, email=email, name=name, encoded=encoded, role=role)

    async def account(self, user_id: UserId) -> AccountView:
        """Raises `NotFound`."""
        async with self._db.read() as session:
            return _view(await session.get(User, user_id))

    async def find(self, email: str) -> AccountView:
        """Raises `NotFound` where nobody has this address."""
        async with self._db.read() as session:
            return _view(await by_email(session, email))

    async def list(self) -> list[AccountView]:
        """All accounts, the oldest first."""
        async with self._db.read() as session:
            found = await session.scalars(select(User).order_by(User.created_at, User.id))
            return [_view(user) for user in found]

    async def set_password(self, user_id: UserId, password: str) -> None:
        """Also ends every login of the account, and the link to another one. Raises `NotFound`."""
        encoded = await self.passwords.hash(password)
        async with self._db.begin() as session:
            query = update(User).where(User.id == user_id).values(password_hash=encoded)
            if await session.scalar(query.returning(User.id)) is None:
                raise NotFound("There is no such account.")
            note(session, AuditAct.ACCOUNT_PASSWORD, user_id)
            await session.execute(delete(Login).where(Login.user_id == user_id))
            await session.execute(delete(PasswordLink).where(PasswordLink.user_id == user_id))
        self.revocations.revoke(user_id)

    async def rename(self, user_id: UserId, name: str) -> AccountView:
        """Raises `InvalidRequest` and `NotFound`."""
        query = update(User).where(User.id == user_id).values(name=normal_name(name))
        async with self._db.begin() as session:
            return _view(await session.scalar(query.returning(User)))

    async def set_role(self, user_id: UserId, role: AccountRole) -> None:
        """From the next event on. Raises `NotFound`, and `Conflict` for the last admin."""
        async with self._db.begin() as session:
            await self.move(session, user_id, role)
        self.revocations.revoke(user_id)

    async def move(self, session: AsyncSession, user_id: UserId, role: AccountRole) -> None:
        """Like `set_role`, in the caller's transaction, who tells of it when that is committed."""
        user = await _changed(session, user_id, keeps_admin=role is AccountRole.ADMIN)
        user.role = role
        note(session, AuditAct.ACCOUNT_ROLE, user_id, role=role)

    async def disable(self, user_id: UserId) -> None:
        """Shut the account out: its logins end, its keys open nothing until it is enabled.

        Raises `NotFound`, and `Conflict` for the last admin.
        """
        async with self._db.begin() as session:
            user = await _changed(session, user_id)
            user.disabled_at = user.disabled_at or self.now()
            note(session, AuditAct.ACCOUNT_DISABLED, user_id)
            await session.execute(delete(Login).where(Login.user_id == user_id))
        self.revocations.revoke(user_id)

    async def enable(self, user_id: UserId) -> None:
        """Let the account in again. Raises `NotFound`."""
        async with self._db.begin() as session:
            (await _changed(session, user_id, keeps_admin=True)).disabled_at = None
            note(session, AuditAct.ACCOUNT_ENABLED, user_id)

    async def remove(self, user_id: UserId) -> None:
        """Delete the account with all that it owns, and note that it left (`chat.departures`).

        Raises `NotFound`, and `Conflict` for the last admin.
        """
        async with self._db.begin() as session:
            user = await _changed(session, user_id)
            session.add(Departure(user_id=user_id, left_at=self.now()))
            note(session, AuditAct.ACCOUNT_REMOVED, user_id)
            await session.delete(user)
        self.revocations.revoke(user_id)

    async def add(
        self, session: AsyncSession, *, email: str, name: str, encoded: str, role: AccountRole
    ) -> UserId:
        """A new account, in the caller's transaction. Raises as `create_user` does."""
        user = User(
            id=new_user_id(),
            email=normal_email(email),
            name=normal_name(name),
            password_hash=encoded,
            role=role,
            created_at=self.now(),
        )
        session.add(user)
        try:
            await session.flush()
        except IntegrityError as error:
            raise Conflict("There is an account with this address.", field="email") from error
        note(session, AuditAct.ACCOUNT_CREATED, user.id, role=role)
        return user.id


def hold_user(session: Session, user_id: UserId) -> None:
    """Keep an account from being removed until the caller's transaction ends.

    Before anything of theirs is locked: a removal then waits at its door, or is over. Of who is gone
    already nothing is held, and nothing is found.
    """
    user = select(User.id).where(User.id == user_id)
    session.execute(user.with_for_update(read=True, key_share=True))


async def _changed(session: AsyncSession, user_id: UserId, *, keeps_admin: bool = False) -> User:
    """The account to be changed, once it is certain that an admin stays, unless the change keeps it.

    A disabled admin is none: there is somebody besides who can come in.
    """
    await serialise(session, ADMINS)
    user = await session.get(User, user_id)
    if user is None:
        raise NotFound("There is no such account.")
    is_admin = user.role is AccountRole.ADMIN and user.disabled_at is None
    if is_admin and not keeps_admin:
        others = select(User.id).where(
            User.role == AccountRole.ADMIN, User.disabled_at.is_(None), User.id != user_id
        )
        if await session.scalar(others.limit(1)) is None:
            raise Conflict("This is the last administrator.", code="last_admin")
    return user


async def by_email(session: AsyncSession, email: str) -> User | None:
    try:
        return await session.scalar(select(User).where(User.email == normal_email(email)))
    except InvalidRequest:
        return None


async def first_admin(session: AsyncSession) -> UserId | None:
    query = select(User.id).where(User.role == AccountRole.ADMIN).order_by(User.created_at)
    return await session.scalar(query.limit(1))


def _view(user: User | None) -> AccountView:
    if user is None:
        raise NotFound("There is no such account.")
    return AccountView(
        id=user.id,
        email=user.email,
        name=user.name,
        role=user.role,
        created_at=user.created_at.timestamp(),
        is_disabled=user.disabled_at is not None,
        has_password=bool(user.password_hash),
    )
