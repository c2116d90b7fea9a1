// HTTP for the administrators' page: figures, acts on sessions, people, the audit log.

import type {
  AccountRole,
  AccountView,
  AuditPage,
  CacheOverview,
  CacheShares,
  FiguresOverTime,
  GroupView,
  InvitationView,
  MissPage,
  NewInvitation,
  NewPasswordLink,
  OwnedKey,
  PrefixTree,
  Quota,
  QuotaKind,
  SessionPage,
  SettingView,
  TurnCost,
  UsageSum,
  UsageView,
  UserSums,
  Vitals,
} from "../generated/admin";
import { call, query } from "./api";

export type * from "../generated/admin";

export type SessionAct = "warm" | "park" | "unpin" | "evict";
export type UsageBy = "user" | "model" | "key" | "day";

const within = encodeURIComponent;

export const admin = {
  figures: (since_s: number) =>
    call<FiguresOverTime>("GET", `/api/admin/figures?${query({ since_s })}`),
  health: () => call<Vitals>("GET", "/api/admin/health"),

  sessions: (cursor: string | null, owner_id: string | null = null) =>
    call<SessionPage>("GET", `/api/admin/sessions?${query({ limit: 100, cursor, owner_id })}`),
  act: (act: SessionAct, ownerId: string, sessionId: string) =>
    call<null>("POST", `/api/admin/sessions/${within(ownerId)}/${within(sessionId)}/${act}`),
  prefixes: (limit: number) => call<PrefixTree>("GET", `/api/admin/prefixes?${query({ limit })}`),
  misses: (reason: string | null, cursor: string | null, limit: number) =>
    call<MissPage>("GET", `/api/admin/misses?${query({ reason, cursor, limit })}`),

  cache: () => call<CacheOverview>("GET", "/api/admin/cache"),
  shares: () => call<CacheShares>("GET", "/api/admin/shares"),
  turns: (limit: number) =>
    call<readonly TurnCost[]>("GET", `/api/admin/turns?${query({ limit })}`),

  sums: () => call<readonly UserSums[]>("GET", "/api/admin/users"),
  usage: (by: readonly UsageBy[], since: string | null) =>
    call<readonly UsageSum[]>(
      "GET",
      `/api/admin/usage?${by.map((one) => query({ by: one })).join("&")}&${query({ since })}`,
    ),
  audit: (act: string | null, cursor: string | null) =>
    call<AuditPage>("GET", `/api/admin/audit?${query({ act, cursor, limit: 50 })}`),

  settings: () => call<readonly SettingView[]>("GET", "/api/admin/settings"),
  keys: () => call<readonly OwnedKey[]>("GET", "/api/admin/keys"),
  revokeKey: (userId: string, keyId: string) =>
    call<null>("DELETE", `/api/users/${within(userId)}/keys/${within(keyId)}`),

  setRole: (id: string, role: AccountRole) =>
    call<AccountView>("PATCH", `/api/users/${within(id)}`, { role }),
  setDisabled: (id: string, is_disabled: boolean) =>
    call<AccountView>("PATCH", `/api/users/${within(id)}`, { is_disabled }),
  offerPassword: (id: string) =>
    call<NewPasswordLink>("POST", `/api/users/${within(id)}/password-link`),
  removeUser: (id: string) => call<null>("DELETE", `/api/users/${within(id)}`),

  invitations: () => call<readonly InvitationView[]>("GET", "/api/invitations"),
  invite: (note: string, role: AccountRole, group_ids: readonly string[]) =>
    call<NewInvitation>("POST", "/api/invitations", { note, role, group_ids }),
  revokeInvitation: (id: string) => call<null>("DELETE", `/api/invitations/${within(id)}`),

  groups: () => call<readonly GroupView[]>("GET", "/api/groups"),
  createGroup: (name: string) => call<GroupView>("POST", "/api/groups", { name }),
  renameGroup: (id: string, name: string) =>
    call<null>("PATCH", `/api/groups/${within(id)}`, { name }),
  deleteGroup: (id: string) => call<null>("DELETE", `/api/groups/${within(id)}`),
  join: (id: string, userId: string) =>
    call<null>("PUT", `/api/groups/${within(id)}/members/${within(userId)}`),
  leave: (id: string, userId: string) =>
    call<null>("DELETE", `/api/groups/${within(id)}/members/${within(userId)}`),

  usageOf: (id: string) => call<UsageView>("GET", `/api/users/${within(id)}/usage`),
  quotas: (of: "users" | "groups", id: string) =>
    call<readonly Quota[]>("GET", `/api/${of}/${within(id)}/quotas`),
  setQuota: (of: "users" | "groups", id: string, kind: QuotaKind, allowed: number | null) =>
    call<null>("PUT", `/api/${of}/${within(id)}/quotas/${kind}`, { allowed }),
  liftQuota: (of: "users" | "groups", id: string, kind: QuotaKind) =>
    call<null>("DELETE", `/api/${of}/${within(id)}/quotas/${kind}`),
};
