"""API keys: shown once, stored as a hash, resolved in one place whatever header they came in.

A key carries its user's rights, as far as its scopes go, and no others. What keys may cost is decided
elsewhere.
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, case, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import Database, serialise
from app.db.models import ApiKey, User
from app.db.types import AccountRole, AuditAct, KeyScope
from app.errors import InvalidRequest, NotFound, Unauthenticated, Unavailable
from app.ids import KeyId, UserId, new_key_id, new_user_id
from app.options import SHORTEST_API_KEY
from app.people.accounts import Accounts, Principal, digest, new_secret, normal_name
from app.people.audit import note

MARK = "sk-kw-"
_SHOWN = len(MARK) + 6
_SHOWN_OWN = 4
"""Of a key that an operator made up, which may be short."""
_TOUCH = timedelta(minutes=1)
"""Being used is written down at most this often."""
_NOBODY = "keys@keepwarm.invalid"


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    id: KeyId
    name: str
    prefix: str
    scopes: tuple[KeyScope, ...]
    created_at: float
    last_used_at: float | None
    expires_at: float | None


class OwnedKey(KeyView, frozen=True, kw_only=True):
    """With whose it is."""

    user_id: UserId
    email: str


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """`key` is shown to its owner and never seen again."""

    key: str
    view: KeyView


def bearer(authorization: str | None) -> str:
    """The key in an `Authorization` header. Raises `Unauthenticated` where there is none."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated("Send an API key as `Authorization: Bearer sk-kw-...`.")
    return key.strip()


class Keys:
    def __init__(self, db: Database, accounts: Accounts) -> None:
        self._db = db
        self._revocations = accounts.revocations
        self._now = accounts.now

    async def create(
        self,
        user_id: UserId,
        name: str,
        *,
        scopes: Sequence[KeyScope] = tuple(KeyScope),
        lifetime: timedelta | None = None,
    ) -> NewKey:
        """Raises `InvalidRequest` for a name that is empty or too long, and for no scope."""
        if not scopes:
            raise InvalidRequest("A key is for something.", field="scopes")
        plain = MARK + new_secret()
        key = self._row(user_id, name, plain)
        key.scopes = tuple(one for one in KeyScope if one in scopes)
        key.expires_at = None if lifetime is None else key.created_at + lifetime
        async with self._db.begin() as session:
            session.add(key)
            note(session, AuditAct.KEY_CREATED, user_id, key_id=key.id, scopes=key.scopes)
        return NewKey(key=plain, view=_view(key))

    async def list(self, user_id: UserId) -> list[KeyView]:
        """Keys that were not revoked, newest first."""
        async with self._db.read() as session:
            query = select(ApiKey).where(ApiKey.user_id == user_id, ApiKey.revoked_at.is_(None))
            found = await session.scalars(query.order_by(ApiKey.created_at.desc(), ApiKey.id))
            return [_view(key) for key in found]

    async def everybodys(self) -> Sequence[OwnedKey]:
        """As `list`, of all users."""
        query = select(ApiKey, User.email).join(User, User.id == ApiKey.user_id)
        query = query.where(ApiKey.revoked_at.is_(None))
        async with self._db.read() as session:
            found = await session.execute(query.order_by(ApiKey.created_at.desc(), ApiKey.id))
            return [
                OwnedKey(**msgspec.structs.asdict(_view(key)), user_id=key.user_id, email=email)
                for key, email in found
            ]

    async def revoke(self, user_id: UserId, key_id: KeyId) -> None:
        """Raises `NotFound` for a key that is not this user's, or was revoked."""
        async with self._db.begin() as session:
            query = (
                update(ApiKey)
                .where(ApiKey.user_id == user_id, ApiKey.id == key_id)
                .where(ApiKey.revoked_at.is_(None))
                .values(revoked_at=self._now())
                .returning(ApiKey.id)
            )
            if await session.scalar(query) is None:
                raise NotFound("There is no such key.")
            note(session, AuditAct.KEY_REVOKED, user_id, key_id=key_id)
        self._revocations.revoke(key_id)

    async def resolve(self, plain: str) -> Principal:
        """Whose key this is. Raises `Unauthenticated`, the same for every reason."""
        now = self._now()
        async with self._db.read() as session:
            query = (
                select(ApiKey, User.role)
                .join(User, User.id == ApiKey.user_id)
                .where(ApiKey.digest == digest(plain), *_alive(now))
            )
            row = (await session.execute(query)).one_or_none()
        if row is None:
            raise Unauthenticated("This API key is not valid.", code="invalid_api_key")
        key, role = row
        if key.last_used_at is None or now - key.last_used_at >= _TOUCH:
            with contextlib.suppress(Unavailable):  # on a full disk one may still read
                await self._touch(key.id, now)
        return Principal(
            user_id=key.user_id,
            role=role,
            via="key",
            credential_id=key.id,
            scopes=key.scopes,
        )

    async def roles(self, key_ids: Sequence[KeyId]) -> dict[str, AccountRole]:
        """The roles behind those of the keys that still let somebody in."""
        query = (
            select(ApiKey.id, User.role)
            .join(User, User.id == ApiKey.user_id)
            .where(ApiKey.id.in_(key_ids), *_alive(self._now()))
        )
        async with self._db.read() as session:
            return {str(id_): role for id_, role in await session.execute(query)}

    async def ensure_key(self, plain: str) -> None:
        """Let in the key that the settings name; idempotent.

        It belongs to the first admin. Where there is none yet, it belongs to an account of its
        own, without a password, so that the first admin's link stays open. Raises
        `InvalidRequest` for a key that is too short.
        """
        if len(plain) < SHORTEST_API_KEY:
            raise InvalidRequest(f"An API key has at least {SHORTEST_API_KEY} characters.")
        async with self._db.begin() as session:
            await serialise(session, "admins")
            query = select(ApiKey.id).where(ApiKey.digest == digest(plain))
            if await session.scalar(query) is None:
                owner = await self._owner(session)
                key = self._row(owner, "KEEPWARM_API_KEY", plain)
                session.add(key)
                note(session, AuditAct.KEY_CREATED, owner, key_id=key.id, scopes=key.scopes)

    async def _owner(self, session: AsyncSession) -> UserId:
        query = select(User.id).where(
            or_(User.role == AccountRole.ADMIN, User.email == _NOBODY), User.disabled_at.is_(None)
        )
        # The first admin, else the account made for keys.
        rank = case((User.role == AccountRole.ADMIN, 0), else_=1)
        owner = await session.scalar(query.order_by(rank, User.created_at).limit(1))
        if owner is not None:
            return owner
        user = User(
            id=new_user_id(),
            email=_NOBODY,
            name="API keys",
            password_hash="",
            role=AccountRole.MEMBER,
            created_at=self._now(),
        )
        session.add(user)
        await session.flush()
        return user.id

    def _row(self, user_id: UserId, name: str, plain: str) -> ApiKey:
        return ApiKey(
            id=new_key_id(),
            user_id=user_id,
            name=normal_name(name),
            scopes=tuple(KeyScope),
            prefix=plain[: _SHOWN if plain.startswith(MARK) else _SHOWN_OWN],
            digest=digest(plain),
            created_at=self._now(),
        )

    async def _touch(self, key_id: KeyId, now: datetime) -> None:
        async with self._db.begin() as session:
            await session.execute(
                update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=now)
            )


def _alive(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        ApiKey.revoked_at.is_(None),
        or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now),
        User.disabled_at.is_(None),
    )


def _view(key: ApiKey) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        scopes=key.scopes,
        created_at=key.created_at.timestamp(),
        last_used_at=key.last_used_at.timestamp() if key.last_used_at else None,
        expires_at=key.expires_at.timestamp() if key.expires_at else None,
    )
