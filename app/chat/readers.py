"""Who may read and who may edit what the library holds: conditions for queries (law 19).

They are asked of the database each time, so what was granted or withdrawn holds from then on. And that
what somebody begins to read is not deleted meanwhile.
"""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from app.db.models import GroupMember, LibraryGroupReader, LibraryItem, LibraryReader, User
from app.db.types import AccountRole, ItemKind, Visibility
from app.errors import NotFound
from app.ids import ItemId, UserId


def readable(user_id: UserId) -> ColumnElement[bool]:
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


def editable(user_id: UserId) -> ColumnElement[bool]:
    """What the user may write versions of: their own, and as an administrator the operator's."""
    own = LibraryItem.owner_id.is_not_distinct_from(user_id)
    return or_(own, LibraryItem.owner_id.is_(None) & is_admin(user_id))


def is_admin(user_id: UserId) -> ColumnElement[bool]:
    return exists().where(User.id == user_id, User.role == AccountRole.ADMIN)


def not_found(kind: ItemKind) -> NotFound:
    """The same for what is not there, is another's, or is not offered any more."""
    return NotFound(f"There is no such {kind}.", field=f"{kind}_id")


def hold(session: Session, user_id: UserId, item_ids: Sequence[ItemId]) -> None:
    """Keep what the user begins to read, until the caller's transaction ends. Raises `NotFound`.

    Whoever deletes an item takes its row before they look who reads it (`disposal`), so one of both
    sees the other. The user's row comes first, as it does for who removes the user.
    """
    user = select(User.id).where(User.id == user_id)
    items = select(LibraryItem.id).where(LibraryItem.id.in_(item_ids)).order_by(LibraryItem.id)
    session.execute(user.with_for_update(read=True, key_share=True))
    held = set(session.scalars(items.with_for_update(read=True, key_share=True)))
    gone = next((one for one in item_ids if one not in held), None)
    if gone is not None:
        raise not_found(_kind_of(gone))


def _kind_of(item_id: ItemId) -> ItemKind:
    """As the id tells it."""
    return ItemKind(item_id.partition("_")[0])
