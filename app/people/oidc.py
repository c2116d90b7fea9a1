"""Signing in by an OpenID provider: who comes in, and as whom.

Somebody is known by issuer and subject. An address alone opens nothing: an unknown person gets an
account by an invitation or where the settings open their domain, and an account that is there already
is linked by whoever is signed in to it. Nobody becomes the first admin here, and whoever makes an
account passes the same lock as at the other doors. Where the settings say which role follows from what
the provider says of somebody, it does at each sign-in. What the provider says is checked in `provider`.
"""

import hmac
from datetime import timedelta

import msgspec
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from sqlalchemy import Select, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import Database, serialise
from app.db.models import Identity, User
from app.db.types import AccountRole, AuditAct
from app.errors import Conflict, Forbidden, NotFound, Unauthenticated
from app.ids import IdentityId, LoginId, UserId, new_identity_id
from app.people.accounts import (
    ADMINS,
    LONGEST_EMAIL,
    LONGEST_NAME,
    Principal,
    by_email,
    first_admin,
    new_secret,
    spelled,
)
from app.people.audit import note
from app.people.invitations import Invitations
from app.people.logins import Logins, SignedIn
from app.people.provider import Provider, Statement
from app.people.rates import one_line
from app.people.throttle import Claim, Throttle

AWAY = timedelta(minutes=10)
"""For so long somebody may be at the provider."""
EVERYBODY = "*"
_SEAL = {"alg": "dir", "enc": "A256GCM"}


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    """`label`: what the provider called them when it was linked."""

    id: IdentityId
    issuer: str
    label: str
    created_at: float


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser takes along to the provider and back, sealed: only we can make or read it."""

    state: str
    nonce: str
    verifier: str
    expires_at: float
    invitation: str | None = None
    for_user: UserId | None = None
    """Who asked for a link to the account that they are signed in to, and by which login."""
    for_login: LoginId | None = None


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """`sealed` goes into a cookie, the browser to `url`."""

    url: str
    sealed: str


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider sends a browser back with; a stranger may have made it up."""

    state: str = ""
    code: str | None = None
    """None: the provider did not let them in."""
    issuer: str | None = None


class Oidc:
    """Without a `provider` nobody comes in this way. `domains`, `roles`: as the settings write them."""

    def __init__(
        self,
        db: Database,
        logins: Logins,
        invitations: Invitations,
        *,
        provider: Provider | None,
        domains: str | None = None,
        roles: str | None = None,
    ) -> None:
        self.provider = provider
        self._db = db
        self._logins = logins
        self._invitations = invitations
        self._accounts = invitations.accounts
        self._now = invitations.accounts.now
        self._domains = {one.strip().casefold() for one in (domains or "").split(",")} - {""}
        self._roles = _roles(roles) if roles else None
        self._throttle = Throttle()
        # Of this process: whoever is away when it stops begins again.
        self._key = OctKey.generate_key(256)

    async def aclose(self) -> None:
        if self.provider is not None:
            await self.provider.aclose()

    # ------------------------------------------------------------ there and back

    async def begin(self, invitation: str | None = None, who: Principal | None = None) -> Sent:
        """Send somebody away: to sign in, to accept an invitation, or to link the account `who`.

        Raises `NotFound` where there is no provider, and what `Provider` raises.
        """
        errand = Errand(
            state=new_secret(),
            nonce=new_secret(),
            verifier=new_secret(),
            expires_at=(self._now() + AWAY).timestamp(),
            invitation=invitation,
            for_user=who.user_id if who else None,
            for_login=LoginId(who.credential_id) if who else None,
        )
        url = await self._asked().address(
            state=errand.state, nonce=errand.nonce, verifier=errand.verifier
        )
        return Sent(url=url, sealed=self._sealed(errand))

    async def finish(
        self, sealed: str, reply: Reply, *, user_agent: str, address: str
    ) -> SignedIn | None:
        """Let in who came back, by a new login; None: an account was linked instead.

        Raises `Unauthenticated`, `Forbidden` and `Conflict` with the reason in their code, `TooMany`,
        and what `Provider` raises.
        """
        claim = Claim(key=one_line(address), free=30)
        self._throttle.attempt(claim)
        errand = self._opened(sealed, reply.state)
        if reply.code is None:
            raise Unauthenticated("The provider did not sign you in.", code="sign_in_denied")
        if errand.for_login is not None and not await self._logins.roles([errand.for_login]):
            raise Unauthenticated("You are not signed in any more.", code="sign_in_expired")
        said = await self._asked().redeem(
            reply.code, nonce=errand.nonce, verifier=errand.verifier, issuer=reply.issuer
        )
        self._throttle.forgive(claim)
        if errand.for_user is not None:
            await self._link(errand.for_user, said)
            return None
        async with self._db.begin() as session:
            await serialise(session, ADMINS)  # before the account is held: as at the other doors
            user = await self._known(session, said) or await self._new(session, said, errand)
            moved = await self._follow(session, user, said)
            signed_in = await self._logins.open(session, user.id, user.role, user_agent=user_agent)
        if moved:
            self._accounts.revocations.revoke(user.id)
        return signed_in

    # ------------------------------------------------------------ one's own

    async def list(self, user_id: UserId) -> list[IdentityView]:
        """As whom the user can come in, the oldest first."""
        query = select(Identity).where(Identity.user_id == user_id)
        async with self._db.read() as session:
            found = await session.scalars(query.order_by(Identity.created_at, Identity.id))
            return [_view(identity) for identity in found]

    async def unlink(self, user_id: UserId, identity_id: IdentityId) -> None:
        """Raises `NotFound`, and `Conflict` for the only way in; logins stay."""
        async with self._db.begin() as session:
            owner = select(User).where(User.id == user_id).with_for_update()
            user = await session.scalar(owner)
            mine = Identity.user_id == user_id
            query = delete(Identity).where(mine, Identity.id == identity_id)
            if user is None or await session.scalar(query.returning(Identity.id)) is None:
                raise NotFound("There is no such identity.", field="identity_id")
            left = await session.scalar(select(func.count()).select_from(Identity).where(mine))
            if not left and not user.password_hash:
                raise Conflict("Without it you could not sign in any more.", code="only_way_in")
            note(session, AuditAct.IDENTITY_UNLINKED, user_id, identity_id=identity_id)

    # ------------------------------------------------------------ rows

    async def _known(self, session: AsyncSession, said: Statement) -> User | None:
        """The user whom this is; None: nobody yet. Raises `Forbidden` for who is shut out."""
        query = (
            select(User)
            .join(Identity, Identity.user_id == User.id)
            .where(Identity.issuer == said.issuer, Identity.subject == said.subject)
            # Shutting them out waits for the login, and then ends it.
            .with_for_update(of=User)
        )
        user = await session.scalar(query)
        if user is not None and user.disabled_at is not None:
            raise Forbidden("This account is disabled.", code="account_disabled")
        return user

    async def _new(self, session: AsyncSession, said: Statement, errand: Errand) -> User:
        """An account for somebody who is nobody yet, if anything lets them in."""
        if errand.invitation is None and not self._is_open_to(said):
            raise Forbidden("There is no account for you here yet.", code="not_invited")
        email = said.email
        if email is None:
            raise Forbidden("The provider does not tell your address.", code="no_address")
        if await by_email(session, email) is not None:
            raise Conflict("There is an account with your address.", code="email_taken")
        name = said.name[:LONGEST_NAME]
        if errand.invitation is not None:
            user_id = await self._invitations.join(
                session, errand.invitation, email=email, name=name
            )
        else:
            user_id = await self._accounts.add(
                session, email=email, name=name, encoded="", role=AccountRole.MEMBER
            )
        self._add(session, user_id, said)
        return await session.get_one(User, user_id)

    async def _follow(self, session: AsyncSession, user: User, said: Statement) -> bool:
        """Give the user the role that follows from what is said; whether that changed anything.

        The last administrator stays one, and the first has come by another door.
        """
        if self._roles is None:
            return False
        words = {*said.words}
        roles = (role for word, role in self._roles if word in words)
        role = next(roles, AccountRole.MEMBER)
        is_first = role is AccountRole.ADMIN and await first_admin(session) is None
        if role is user.role or is_first:
            return False
        try:
            await self._accounts.move(session, user.id, role)
        except Conflict:
            return False
        return True

    def _is_open_to(self, said: Statement) -> bool:
        if said.email is None or not said.is_verified:
            return False
        domain = spelled(said.email).rpartition("@")[2]
        return EVERYBODY in self._domains or domain in self._domains

    async def _link(self, user_id: UserId, said: Statement) -> None:
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            owner = select(User.id).where(User.id == user_id, User.disabled_at.is_(None))
            if await session.scalar(owner.with_for_update()) is None:
                raise Unauthenticated("You are not signed in any more.", code="sign_in_expired")
            found = await session.scalar(_by_subject(said))
            if found is not None and found.user_id != user_id:
                raise Conflict("This is linked to another account.", code="identity_taken")
            if found is None:
                self._add(session, user_id, said)

    def _add(self, session: AsyncSession, user_id: UserId, said: Statement) -> None:
        identity = Identity(
            id=new_identity_id(),
            user_id=user_id,
            issuer=said.issuer,
            subject=said.subject,
            label=(said.email or said.name)[:LONGEST_EMAIL],
            created_at=self._now(),
        )
        session.add(identity)
        note(session, AuditAct.IDENTITY_LINKED, user_id, identity_id=identity.id)

    # ------------------------------------------------------------ the errand

    def _asked(self) -> Provider:
        if self.provider is None:
            raise NotFound("Nobody signs in by a provider here.", code="no_provider")
        return self.provider

    def _sealed(self, errand: Errand) -> str:
        return jwe.encrypt_compact(_SEAL, msgspec.json.encode(errand), self._key)

    def _opened(self, sealed: str, state: str) -> Errand:
        """The errand that this browser was sent on, if this is its end."""
        expired = Unauthenticated(
            "This attempt to sign in is too old, or began elsewhere.", code="sign_in_expired"
        )
        try:
            plain = jwe.decrypt_compact(sealed, self._key).plaintext
            errand = msgspec.json.decode(plain or b"", type=Errand)
        except (JoseError, ValueError) as error:
            raise expired from error
        is_ours = hmac.compare_digest(errand.state.encode(), state.encode())
        if not is_ours or errand.expires_at <= self._now().timestamp():
            raise expired
        return errand


def _roles(written: str) -> tuple[tuple[str, AccountRole], ...]:
    pairs = (one.rpartition("=") for one in written.split(","))
    return tuple((word.strip(), AccountRole(role)) for word, _, role in pairs)


def _by_subject(said: Statement) -> Select[Identity]:
    return select(Identity).where(Identity.issuer == said.issuer, Identity.subject == said.subject)


def _view(identity: Identity) -> IdentityView:
    return IdentityView(
        id=identity.id,
        issuer=identity.issuer,
        label=identity.label,
        created_at=identity.created_at.timestamp(),
    )
