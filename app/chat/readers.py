"""Who may read and who may edit what the library holds: conditions for queries (law 19).

They are asked of the database each time, so what was granted or withdrawn holds from then on. And that
what somebody begins to read, and whom something is listed for, is not deleted meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, delete, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from app.db.models import Group, GroupMember, LibraryGroupReader, LibraryItem, LibraryReader, User
from app.db.types import AccountRole, ItemKind, Visibility
from app.errors import InvalidRequest, NotFound
from app.ids import GroupId, ItemId, UserId
from app.people.accounts import hold_user, normal_email, spelled
from engine.api import OPERATOR_SCOPE, Scope

Whose: TypeAlias = UserId | BindParameter[UserId]


def readable(user_id: Whose) -> ColumnElement[bool]:
    """What the user may read, now: everybody's, their own, where they or a group of theirs are listed.

    Administrators read whatever is the operator's, since they write it.
    """
    listed = exists().where(
        LibraryReader.item_id == LibraryItem.id, LibraryReader.user_id == user_id
    )
    through_group = exists().where(
        LibraryGroupReader.item_id == LibraryItem.id,
        LibraryGroupReader.group_id == GroupMember.group_id,
        GroupMember.user_id == user_id,
    )
    return or_(
        LibraryItem.visibility == Visibility.EVERYBODY,
        (LibraryItem.visibility == Visibility.LISTED) & (listed | through_group),
        editable(user_id),
    )


def editable(user_id: Whose) -> ColumnElement[bool]:
    """What the user may write versions of: their own, and as an administrator the operator's."""
    own = LibraryItem.owner_id.is_not_distinct_from(user_id)
    return or_(own, LibraryItem.owner_id.is_(None) & is_admin(user_id))


def is_admin(user_id: Whose) -> ColumnElement[bool]:
    return exists().where(User.id == user_id, User.role == AccountRole.ADMIN)


def _of_items(allowed: ColumnElement[bool]) -> Select[ItemId, Visibility, UserId | None]:
    told = LibraryItem.id, LibraryItem.visibility, LibraryItem.owner_id
    named = LibraryItem.id.in_(bindparam("items", expanding=True))
    return select(*told).where(named, allowed)


_READABLE = _of_items(readable(bindparam("user")))
_PUBLISHED = _of_items(LibraryItem.owner_id.is_(None))
"""Built once, as one is asked at every turn: to say it costs more than to run it."""


def scopes(
    session: Session, user_id: UserId | None, item_ids: Sequence[ItemId]
) -> Mapping[ItemId, Scope]:
    """Those of them that the user may read, now, and who may match what each says by itself.

    For nobody in particular: those that are the operator's.
    """
    query = _PUBLISHED if user_id is None else _READABLE
    found = session.execute(query, {"items": item_ids, "user": user_id})
    return {id_: _scope(id_, visibility, owner_id) for id_, visibility, owner_id in found}


def _scope(item_id: ItemId, visibility: Visibility, owner_id: UserId | None) -> Scope:
    match visibility:
        case Visibility.EVERYBODY:
            return OPERATOR_SCOPE
        case Visibility.LISTED:
            return Scope(f"{OPERATOR_SCOPE}:{item_id}")
        case Visibility.OWNER:
            return Scope(f"user:{owner_id}")


def not_found(kind: ItemKind) -> NotFound:
    """The same for what is not there, is another's, or is not offered any more."""
    return NotFound(f"There is no such {kind}.", field=f"{kind}_id")


def hold(session: Session, user_id: UserId, item_ids: Sequence[ItemId]) -> None:
    """Keep what the user begins to read, until the caller's transaction ends. Raises `NotFound`.

    Whoever deletes an item takes its row before they look who reads it (`disposal`), so one of both
    sees the other.
    """
    hold_user(session, user_id)
    items = select(LibraryItem.id).where(LibraryItem.id.in_(item_ids)).order_by(LibraryItem.id)
    held = set(session.scalars(items.with_for_update(read=True, key_share=True)))
    gone = next((one for one in item_ids if one not in held), None)
    if gone is not None:
        raise not_found(kind_of(gone))


def kind_of(item_id: ItemId) -> ItemKind:
    """As the id tells it."""
    return ItemKind(item_id.partition("_")[0])


# ---------------------------------------------------------------- who is listed


async def hold_readers(
    session: AsyncSession,
    user_id: UserId,
    emails: Collection[str],
    group_ids: Collection[GroupId],
) -> None:
    """Keep who lists and those of the listed who are there, before the item itself is locked.

    It tells nobody who that is; `list_readers` does, to who may edit the item.
    """
    listed = User.email.in_([spelled(email) for email in emails])
    users = select(User.id).where((User.id == user_id) | listed).order_by(User.id)
    groups = select(Group.id).where(Group.id.in_(group_ids)).order_by(Group.id)
    await session.execute(users.with_for_update(read=True, key_share=True))
    await session.execute(groups.with_for_update(read=True, key_share=True))


async def list_readers(
    session: AsyncSession,
    item: LibraryItem,
    emails: Collection[str],
    group_ids: Collection[GroupId],
) -> None:
    """They, and nobody else from now on. Raises `InvalidRequest`, and `NotFound` for a group."""
    if item.visibility is not Visibility.LISTED:
        for field, named in (("readers", emails), ("group_ids", group_ids)):
            if named:
                raise InvalidRequest("Readers are of what is `listed`.", field=field)
    for table in (LibraryReader, LibraryGroupReader):
        await session.execute(delete(table).where(table.item_id == item.id))
    wanted_groups = set(group_ids)
    known = await session.scalars(select(Group.id).where(Group.id.in_(wanted_groups)))
    if wanted_groups - set(known):
        raise NotFound("There is no such group.", field="group_ids")
    session.add_all(LibraryGroupReader(item_id=item.id, group_id=one) for one in wanted_groups)
    wanted = {normal_email(email) for email in emails}
    found = await session.execute(select(User.email, User.id).where(User.email.in_(wanted)))
    users = {row.email: row.id for row in found}
    if missing := wanted - users.keys():
        raise InvalidRequest(f"Nobody here has the address {min(missing)!r}.", field="readers")
    session.add_all(LibraryReader(item_id=item.id, user_id=one) for one in users.values())
