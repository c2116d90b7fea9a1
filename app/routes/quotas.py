"""How much one has used and may use, and, for administrators, how much others may: `/api`."""

from datetime import timedelta
from typing import Annotated

import msgspec
from litestar import delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from app.chat.supervisor import Supervisor
from app.db.types import QuotaKind
from app.ids import GroupId, UserId
from app.people.accounts import Accounts, Principal
from app.people.audit import Audit
from app.people.groups import Groups
from app.people.quotas import Quota, Quotas, today
from app.people.usage import DayOfUse, Usage, Used

LARGEST = 2**53 - 1
"""The largest integer that JSON carries safely."""
Days = Annotated[int, QueryParameter(ge=1, le=366)]


class Allowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None: as much as they like."""

    allowed: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] | None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a user, how much of it is used, and the last days, the newest first."""

    quotas: tuple[Used, ...]
    days: tuple[DayOfUse, ...]


@get("/account/usage")
async def own_usage(
    principal: NamedDependency[Principal],
    usage: NamedDependency[Usage],
    supervisor: NamedDependency[Supervisor],
    days: Days = 30,
) -> UsageView:
    return await _usage(usage, supervisor, principal.user_id, days)


@get("/users/{user_id:str}/usage")
async def user_usage(
    user_id: FromPath[str],
    accounts: NamedDependency[Accounts],
    usage: NamedDependency[Usage],
    days: Days = 30,
    *,
    audit: NamedDependency[Audit],
    supervisor: NamedDependency[Supervisor],
) -> UsageView:
    found = await accounts.account(UserId(user_id))
    await audit.look("usage", found.id)
    return await _usage(usage, supervisor, found.id, days)


@get("/users/{user_id:str}/quotas")
async def list_user_quotas(
    user_id: FromPath[str],
    accounts: NamedDependency[Accounts],
    quotas: NamedDependency[Quotas],
) -> tuple[Quota, ...]:
    """Those that were set for this user alone."""
    return await quotas.of_user((await accounts.account(UserId(user_id))).id)


@put("/users/{user_id:str}/quotas/{kind:str}", status_code=204)
async def set_user_quota(
    user_id: FromPath[str],
    kind: FromPath[QuotaKind],
    data: JSONBody[Allowed],
    quotas: NamedDependency[Quotas],
) -> None:
    """Goes before what their groups have."""
    await quotas.set_for_user(UserId(user_id), kind, data.allowed)


@delete("/users/{user_id:str}/quotas/{kind:str}")
async def lift_user_quota(
    user_id: FromPath[str], kind: FromPath[QuotaKind], quotas: NamedDependency[Quotas]
) -> None:
    await quotas.lift_for_user(UserId(user_id), kind)


@get("/groups/{group_id:str}/quotas")
async def list_group_quotas(
    group_id: FromPath[str], groups: NamedDependency[Groups], quotas: NamedDependency[Quotas]
) -> tuple[Quota, ...]:
    await groups.check(GroupId(group_id))
    return await quotas.of_group(GroupId(group_id))


@put("/groups/{group_id:str}/quotas/{kind:str}", status_code=204)
async def set_group_quota(
    group_id: FromPath[str],
    kind: FromPath[QuotaKind],
    data: JSONBody[Allowed],
    quotas: NamedDependency[Quotas],
) -> None:
    """For each of its members."""
    await quotas.set_for_group(GroupId(group_id), kind, data.allowed)


@delete("/groups/{group_id:str}/quotas/{kind:str}")
async def lift_group_quota(
    group_id: FromPath[str], kind: FromPath[QuotaKind], quotas: NamedDependency[Quotas]
) -> None:
    await quotas.lift_for_group(GroupId(group_id), kind)


async def _usage(usage: Usage, supervisor: Supervisor, user_id: UserId, days: int) -> UsageView:
    since = today(usage.quotas.now() - timedelta(days=days - 1))
    kept_bytes = await supervisor.keeping.kept_bytes(user_id)
    return UsageView(
        quotas=await usage.of(user_id, kept_bytes),
        days=tuple(await usage.days(user_id, since)),
    )


own_handlers = [own_usage]
handlers = [
    user_usage,
    list_user_quotas,
    set_user_quota,
    lift_user_quota,
    list_group_quotas,
    set_group_quota,
    lift_group_quota,
]
