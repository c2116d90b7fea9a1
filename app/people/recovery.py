"""A forgotten password: one link, made by an administrator, by which its owner chooses another.

The administrator never knows a password, and nothing changes before the link is used. It is used
once, stands for a day and for as long as its maker is an administrator; a newer one ends it, and so
does a password that was changed meanwhile.
"""

from datetime import timedelta

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.db.base import Database, serialise
from app.db.models import Login, PasswordLink, User
from app.db.types import AccountRole, AuditAct
from app.errors import NotFound, Unauthenticated
from app.ids import UserId
from app.people.accounts import ADMINS, Accounts, digest, hold_user, new_secret
from app.people.audit import note
from app.people.logins import Logins, SignedIn

LINK = timedelta(days=1)


class NewPasswordLink(msgspec.Struct, frozen=True, kw_only=True):
    """`token` goes into the link, is shown once and never seen again."""

    token: str
    expires_at: float


class Recovery:
    def __init__(self, db: Database, accounts: Accounts, logins: Logins) -> None:
        self._db = db
        self._logins = logins
        self._passwords = accounts.passwords
        self._revocations = accounts.revocations
        self._now = accounts.now

    async def offer(self, admin_id: UserId, user_id: UserId) -> NewPasswordLink:
        """Raises `NotFound`."""
        token, now = new_secret(), self._now()
        link = PasswordLink(
            user_id=user_id,
            token_digest=digest(token),
            created_by=admin_id,
            expires_at=now + LINK,
        )
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            await session.run_sync(hold_user, user_id)
            if await session.get(User, user_id) is None:
                raise NotFound("There is no such account.")
            await session.execute(delete(PasswordLink).where(PasswordLink.user_id == user_id))
            session.add(link)
            note(session, AuditAct.ACCOUNT_PASSWORD_LINK, user_id)
        return NewPasswordLink(token=token, expires_at=link.expires_at.timestamp())

    async def redeem(self, token: str, password: str, *, user_agent: str) -> SignedIn:
        """Choose a password, which signs out everywhere else; of many who try at once, one does.

        Raises `Unauthenticated` for a link that is unknown, used or too old, and `InvalidRequest`
        for a password; such a link can be used again.
        """
        async with self._db.read() as session:
            # First whether it is a link at all: a hash is too dear to be had for nothing.
            await self._find(session, token)
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            user = await self._find(session, token)
            user.password_hash = encoded
            await session.execute(delete(PasswordLink).where(PasswordLink.user_id == user.id))
            await session.execute(delete(Login).where(Login.user_id == user.id))
            note(session, AuditAct.ACCOUNT_PASSWORD, user.id)
            signed_in = await self._logins.open(session, user.id, user.role, user_agent=user_agent)
        self._revocations.revoke(user.id)
        return signed_in

    async def _find(self, session: AsyncSession, token: str) -> User:
        maker = aliased(User)
        query = (
            select(User)
            .join(PasswordLink, PasswordLink.user_id == User.id)
            .join(maker, maker.id == PasswordLink.created_by)
            .where(PasswordLink.token_digest == digest(token))
            .where(PasswordLink.expires_at > self._now(), User.disabled_at.is_(None))
            .where(maker.role == AccountRole.ADMIN, maker.disabled_at.is_(None))
        )
        found = await session.scalar(query)
        if found is None:
            raise Unauthenticated(
                "This link was used, is too old, or was followed by a newer one or by a password.",
                code="invalid_link",
            )
        return found
