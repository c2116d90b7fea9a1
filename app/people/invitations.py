"""How people come to be here: one-time links, and the first admin.

An administrator's link stands for as long as its maker is one. The server's own is for the first
admin; it, the settings and a command all pass one lock, so there is exactly one first.
"""

from datetime import datetime, timedelta

import msgspec
from sqlalchemy import Select, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import Database, serialise
from app.db.models import Group, GroupMember, Invitation, InvitationGroup, User
from app.db.types import AccountRole, AuditAct
from app.errors import Conflict, Forbidden, NotFound, Unauthenticated
from app.ids import GroupId, InvitationId, UserId, new_invitation_id
from app.people import audit
from app.people.accounts import (
    ADMINS,
    Accounts,
    digest,
    first_admin,
    hold_user,
    new_secret,
    normal_name,
)

LINK = timedelta(days=7)
MOST_OPEN = 1000
"""Links that wait to be used."""


class InvitationView(msgspec.Struct, frozen=True, kw_only=True):
    """One that waits to be used; its link is not kept."""

    id: InvitationId
    note: str
    role: AccountRole
    group_ids: tuple[GroupId, ...]
    created_by: UserId
    created_at: float
    expires_at: float


class NewInvitation(msgspec.Struct, frozen=True, kw_only=True):
    """`token` goes into the link, is shown once and never seen again."""

    token: str
    view: InvitationView


class Invitations:
    def __init__(self, db: Database, accounts: Accounts) -> None:
        self._db = db
        self.accounts = accounts
        self._passwords = accounts.passwords
        self._now = accounts.now

    # ------------------------------------------------------------ by an admin

    async def invite(
        self,
        admin_id: UserId,
        note: str,
        role: AccountRole,
        *,
        group_ids: tuple[GroupId, ...] = (),
        lifetime: timedelta = LINK,
    ) -> NewInvitation:
        """Raises `InvalidRequest`, `NotFound` for a group and `Conflict` for too many."""
        token, now = new_secret(), self._now()
        invitation = Invitation(
            id=new_invitation_id(),
            token_digest=digest(token),
            created_by=admin_id,
            role=role,
            note=normal_name(note),
            created_at=now,
            expires_at=now + lifetime,
        )
        group_ids = tuple(dict.fromkeys(group_ids))
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            await session.run_sync(hold_user, admin_id)
            groups = select(Group.id).where(Group.id.in_(group_ids)).order_by(Group.id)
            held = await session.scalars(groups.with_for_update(read=True, key_share=True))
            if set(group_ids) - set(held):
                raise NotFound("There is no such group.", field="group_ids")
            await session.execute(delete(Invitation).where(Invitation.expires_at <= now))
            if len(await _open(session, now)) >= MOST_OPEN:
                raise Conflict(
                    f"{MOST_OPEN} invitations wait already; revoke some first.",
                    code="too_many_invitations",
                )
            session.add(invitation)
            await session.flush()
            session.add_all(
                InvitationGroup(invitation_id=invitation.id, group_id=one) for one in group_ids
            )
            audit.note(session, AuditAct.INVITATION_CREATED, invitation.id, role=role)
        return NewInvitation(token=token, view=_view(invitation, group_ids))

    async def list(self) -> list[InvitationView]:
        """Those that can still be used, the newest first."""
        async with self._db.read() as session:
            found = await _open(session, self._now())
            pairs = await session.execute(
                select(InvitationGroup.invitation_id, InvitationGroup.group_id)
                .where(InvitationGroup.invitation_id.in_([one.id for one in found]))
                .order_by(InvitationGroup.group_id)
            )
            groups: dict[InvitationId, tuple[GroupId, ...]] = {}
            for invitation_id, group_id in pairs:
                groups[invitation_id] = (*groups.get(invitation_id, ()), group_id)
            return [_view(one, groups.get(one.id, ())) for one in found]

    async def revoke(self, invitation_id: InvitationId) -> None:
        """Raises `NotFound` for one that is used or is none."""
        query = delete(Invitation).where(
            Invitation.id == invitation_id,
            Invitation.used_at.is_(None),
            Invitation.created_by.is_not(None),
        )
        async with self._db.begin() as session:
            if await session.scalar(query.returning(Invitation.id)) is None:
                raise NotFound("There is no such invitation.", field="invitation_id")
            audit.note(session, AuditAct.INVITATION_REVOKED, invitation_id)

    async def accept(self, token: str, email: str, name: str, password: str) -> UserId:
        """Make the account that the link stands for; of many who try at once, one does.

        Raises `Unauthenticated` for a link that is unknown, used, revoked or too old, and
        `InvalidRequest` with the field; a link that was refused for its input can be used again.
        """
        async with self._db.read() as session:
            # First whether it is a link at all: a hash is too dear to be had for nothing.
            await self._find(session, _standing(token, self._now()))
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            return await self.join(session, token, email=email, name=name, encoded=encoded)

    async def join(
        self, session: AsyncSession, token: str, *, email: str, name: str, encoded: str = ""
    ) -> UserId:
        """Like `accept`, in the caller's transaction, which has passed the lock.

        Without a password nobody becomes the first admin: who is that must not hang on others.
        """
        # Whoever revokes it meanwhile is too late, or was quicker.
        standing = _standing(token, self._now()).with_for_update(of=Invitation)
        invitation = await self._find(session, standing)
        if invitation.created_by is None and not encoded:
            raise Forbidden("The first administrator has a password.", code="needs_password")
        invitation.used_at = self._now()
        user_id = await self.accounts.add(
            session, email=email, name=name, encoded=encoded, role=invitation.role
        )
        groups = select(InvitationGroup.group_id).where(
            InvitationGroup.invitation_id == invitation.id
        )
        session.add_all(
            GroupMember(group_id=one, user_id=user_id) for one in await session.scalars(groups)
        )
        audit.note(session, AuditAct.INVITATION_ACCEPTED, user_id, invitation_id=invitation.id)
        return user_id

    # ------------------------------------------------------------ the first admin

    async def first_admin_link(self) -> str | None:
        """A new one-time token, which ends all earlier ones; None once there is an admin."""
        token, now = new_secret(), self._now()
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            if await first_admin(session) is not None:
                return None
            await session.execute(delete(Invitation).where(Invitation.created_by.is_(None)))
            session.add(
                Invitation(
                    id=new_invitation_id(),
                    token_digest=digest(token),
                    created_by=None,
                    role=AccountRole.ADMIN,
                    note="The first administrator",
                    created_at=now,
                    expires_at=now + LINK,
                )
            )
        return token

    async def ensure_admin(self, email: str, password: str) -> UserId:
        """Make the first admin unattended. Where there is one already, nothing is changed."""
        async with self._db.read() as session:
            admin_id = await first_admin(session)
        if admin_id is not None:
            return admin_id
        encoded = await self._passwords.hash(password)
        async with self._db.begin() as session:
            await serialise(session, ADMINS)
            await session.execute(delete(Invitation).where(Invitation.created_by.is_(None)))
            return await first_admin(session) or await self.accounts.add(
                session, email=email, name="Admin", encoded=encoded, role=AccountRole.ADMIN
            )

    # ------------------------------------------------------------ rows

    async def _find(self, session: AsyncSession, standing: Select[Invitation]) -> Invitation:
        found = await session.scalar(standing)
        is_first = found is not None and found.created_by is None
        if found is None or (is_first and await first_admin(session) is not None):
            raise Unauthenticated(
                "This link was used or revoked, is too old, or was followed by a newer one.",
                code="invalid_link",
            )
        return found


def _standing(token: str, now: datetime) -> Select[Invitation]:
    """The link's, unless it is used or too old, or its maker is no administrator any more."""
    return (
        select(Invitation)
        .outerjoin(User, User.id == Invitation.created_by)
        .where(Invitation.token_digest == digest(token), Invitation.used_at.is_(None))
        .where(Invitation.expires_at > now)
        .where(
            or_(
                Invitation.created_by.is_(None),
                (User.role == AccountRole.ADMIN) & User.disabled_at.is_(None),
            )
        )
    )


async def _open(session: AsyncSession, now: datetime) -> list[Invitation]:
    query = (
        select(Invitation)
        .join(User, User.id == Invitation.created_by)
        .where(User.role == AccountRole.ADMIN, User.disabled_at.is_(None))
        .where(Invitation.used_at.is_(None), Invitation.expires_at > now)
    )
    found = await session.scalars(
        query.order_by(Invitation.created_at.desc(), Invitation.id.desc())
    )
    return list(found)


def _view(invitation: Invitation, group_ids: tuple[GroupId, ...]) -> InvitationView:
    assert invitation.created_by is not None
    return InvitationView(
        id=invitation.id,
        note=invitation.note,
        role=invitation.role,
        group_ids=group_ids,
        created_by=invitation.created_by,
        created_at=invitation.created_at.timestamp(),
        expires_at=invitation.expires_at.timestamp(),
    )
