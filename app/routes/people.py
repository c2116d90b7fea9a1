"""Other people, for administrators: accounts, their keys, invitations and groups: `/api`."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

import msgspec
from litestar import delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.chat.departures import Departures
from app.db.types import AccountRole
from app.errors import InvalidRequest
from app.ids import GroupId, InvitationId, KeyId, UserId
from app.people.accounts import Accounts, AccountView, Principal
from app.people.groups import Groups, GroupView
from app.people.invitations import LINK, Invitations, InvitationView, NewInvitation
from app.people.keys import Keys, OwnedKey
from app.people.recovery import NewPasswordLink, Recovery
from app.routes.published.told import told

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
LONGEST_LINK_S = 90 * 24 * 3600


class AccountChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing at a time."""

    role: AccountRole | None = None
    is_disabled: bool | None = None


class Invite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`note`: whom it is for. Whoever comes by the link has the role and is in the groups."""

    note: Name
    role: AccountRole = AccountRole.MEMBER
    group_ids: Annotated[tuple[GroupId, ...], msgspec.Meta(max_length=100)] = ()
    expires_in_s: Annotated[int, msgspec.Meta(ge=60, le=LONGEST_LINK_S)] = int(LINK.total_seconds())


class GroupName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name


# ---------------------------------------------------------------- accounts


@get("/users")
async def list_users(accounts: NamedDependency[Accounts]) -> list[AccountView]:
    return await accounts.list()


@patch("/users/{user_id:str}", opt=told(fails=(409,)))
async def change_user(
    user_id: FromPath[str],
    data: JSONBody[AccountChange],
    accounts: NamedDependency[Accounts],
    departures: NamedDependency[Departures],
) -> AccountView:
    known_id = UserId(user_id)
    match data:
        case AccountChange(role=AccountRole() as role, is_disabled=None):
            await accounts.set_role(known_id, role)
        case AccountChange(role=None, is_disabled=True):
            await accounts.disable(known_id)
            await departures.look()
        case AccountChange(role=None, is_disabled=False):
            await accounts.enable(known_id)
        case _:
            raise InvalidRequest("Send `role`, or `is_disabled`.")
    return await accounts.account(known_id)


@delete("/users/{user_id:str}", opt=told(fails=(409,)))
async def remove_user(
    user_id: FromPath[str],
    accounts: NamedDependency[Accounts],
    departures: NamedDependency[Departures],
) -> None:
    """With everything that the account owns, for good."""
    await accounts.remove(UserId(user_id))
    await departures.look()


@get("/admin/keys")
async def list_all_keys(keys: NamedDependency[Keys]) -> Sequence[OwnedKey]:
    """Everybody's that were not revoked, the newest first."""
    return await keys.everybodys()


@delete("/users/{user_id:str}/keys/{key_id:str}")
async def revoke_users_key(
    user_id: FromPath[str], key_id: FromPath[str], keys: NamedDependency[Keys]
) -> None:
    await keys.revoke(UserId(user_id), KeyId(key_id))


@post("/users/{user_id:str}/password-link", opt=told(fails=(404,)))
async def offer_password(
    user_id: FromPath[str],
    principal: NamedDependency[Principal],
    recovery: NamedDependency[Recovery],
) -> NewPasswordLink:
    """The link is the page's `/setup#password=` and the token; it is told this once."""
    return await recovery.offer(principal.user_id, UserId(user_id))


# ---------------------------------------------------------------- invitations


@get("/invitations")
async def list_invitations(
    invitations: NamedDependency[Invitations],
) -> list[InvitationView]:
    """Those that can still be used."""
    return await invitations.list()


@post("/invitations", opt=told(fails=(404, 409)))
async def invite(
    data: JSONBody[Invite],
    principal: NamedDependency[Principal],
    invitations: NamedDependency[Invitations],
) -> NewInvitation:
    """The link is the page's `/setup#token=` and the token; it is told this once."""
    return await invitations.invite(
        principal.user_id,
        data.note,
        data.role,
        group_ids=data.group_ids,
        lifetime=timedelta(seconds=data.expires_in_s),
    )


@delete("/invitations/{invitation_id:str}")
async def revoke_invitation(
    invitation_id: FromPath[str], invitations: NamedDependency[Invitations]
) -> None:
    await invitations.revoke(InvitationId(invitation_id))


# ---------------------------------------------------------------- groups


@get("/groups")
async def list_groups(groups: NamedDependency[Groups]) -> list[GroupView]:
    return await groups.list()


@post("/groups", opt=told(fails=(409,)))
async def create_group(data: JSONBody[GroupName], groups: NamedDependency[Groups]) -> GroupView:
    return await groups.create(data.name)


@patch("/groups/{group_id:str}", status_code=204, opt=told(fails=(409,)))
async def rename_group(
    group_id: FromPath[str], data: JSONBody[GroupName], groups: NamedDependency[Groups]
) -> None:
    await groups.rename(GroupId(group_id), data.name)


@delete("/groups/{group_id:str}")
async def delete_group(group_id: FromPath[str], groups: NamedDependency[Groups]) -> None:
    """What was published to it alone is read by nobody any more."""
    await groups.delete(GroupId(group_id))


@put("/groups/{group_id:str}/members/{user_id:str}", status_code=204)
async def join_group(
    group_id: FromPath[str], user_id: FromPath[str], groups: NamedDependency[Groups]
) -> None:
    await groups.join(GroupId(group_id), UserId(user_id))


@delete("/groups/{group_id:str}/members/{user_id:str}")
async def leave_group(
    group_id: FromPath[str], user_id: FromPath[str], groups: NamedDependency[Groups]
) -> None:
    await groups.leave(GroupId(group_id), UserId(user_id))


handlers = [
    list_users,
    change_user,
    remove_user,
    offer_password,
    list_all_keys,
    revoke_users_key,
    list_invitations,
    invite,
    revoke_invitation,
    list_groups,
    create_group,
    rename_group,
    delete_group,
    join_group,
    leave_group,
]
