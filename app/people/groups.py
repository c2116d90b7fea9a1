"""Groups: people whom something can be published to together, made and filled by administrators.

What a membership opens is asked of the database each time it is needed (`chat.readers`), so that it
opens and closes at once. Who leaves an account leaves its groups with it.
"""

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError

from app.db.base import Database, serialise
from app.db.models import Group, GroupMember, User
from app.db.types import AuditAct, utc_now
from app.errors import Conflict, NotFound
from app.ids import GroupId, UserId, new_group_id
from app.people.accounts import ADMINS, hold_user, normal_name
from app.people.audit import note


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    id: GroupId
    name: str
    member_ids: tuple[UserId, ...]


class Groups:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def create(self, name: str) -> GroupView:
        """Raises `InvalidRequest` for the name, `Conflict` where there is one of it."""
        group = Group(id=new_group_id(), name=normal_name(name), created_at=utc_now())
        async with self._db.begin() as session:
            session.add(group)
            try:
                await session.flush()
            except IntegrityError as error:
                raise _taken() from error
            note(session, AuditAct.GROUP_CREATED, group.id, name=group.name)
        return GroupView(id=group.id, name=group.name, member_ids=())

    async def list(self) -> list[GroupView]:
        """All groups, by name."""
        async with self._db.read() as session:
            groups = list(await session.scalars(select(Group).order_by(Group.name, Group.id)))
            pairs = await session.execute(
                select(GroupMember.group_id, GroupMember.user_id).order_by(GroupMember.user_id)
            )
            members: dict[GroupId, list[UserId]] = {}
            for group_id, user_id in pairs:
                members.setdefault(group_id, []).append(user_id)
        return [
            GroupView(id=one.id, name=one.name, member_ids=tuple(members.get(one.id, ())))
            for one in groups
        ]

    async def check(self, group_id: GroupId) -> None:
        """Raises `NotFound`."""
        async with self._db.read() as session:
            if await session.get(Group, group_id) is None:
                raise _not_found()

    async def rename(self, group_id: GroupId, name: str) -> None:
        """Raises `InvalidRequest`, `Conflict` and `NotFound`."""
        new_name = normal_name(name)
        query = update(Group).where(Group.id == group_id).values(name=new_name)
        async with self._db.begin() as session:
            try:
                renamed = await session.scalar(query.returning(Group.id))
            except IntegrityError as error:
                raise _taken() from error
            if renamed is None:
                raise _not_found()
            note(session, AuditAct.GROUP_RENAMED, group_id, name=new_name)

    async def delete(self, group_id: GroupId) -> None:
        """What was published to it alone is read by nobody any more. Raises `NotFound`."""
        query = delete(Group).where(Group.id == group_id).returning(Group.name)
        async with self._db.begin() as session:
            # Members and invitations hang on it, as they do on an account that is being removed.
            await serialise(session, ADMINS)
            name = await session.scalar(query)
            if name is None:
                raise _not_found()
            note(session, AuditAct.GROUP_DELETED, group_id, name=name)

    async def join(self, group_id: GroupId, user_id: UserId) -> None:
        """Raises `NotFound` for the group and for the account."""
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            # One at a time: whoever joins twice at once is in once.
            if await session.get(Group, group_id, with_for_update=True) is None:
                raise _not_found()
            if await session.get(User, user_id) is None:
                raise NotFound("There is no such account.", field="user_id")
            if await session.get(GroupMember, (group_id, user_id)) is None:
                session.add(GroupMember(group_id=group_id, user_id=user_id))
                note(session, AuditAct.GROUP_JOINED, user_id, group_id=group_id)

    async def leave(self, group_id: GroupId, user_id: UserId) -> None:
        """Raises `NotFound` where they are not in it."""
        query = delete(GroupMember).where(
            GroupMember.group_id == group_id, GroupMember.user_id == user_id
        )
        async with self._db.begin() as session:
            if await session.scalar(query.returning(GroupMember.user_id)) is None:
                raise NotFound("There is no such member.", field="user_id")
            note(session, AuditAct.GROUP_LEFT, user_id, group_id=group_id)


def _taken() -> Conflict:
    return Conflict("There is a group of this name.", field="name")


def _not_found() -> NotFound:
    return NotFound("There is no such group.", field="group_id")
