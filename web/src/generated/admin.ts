// Generated from the server's structs by `npm run generate`; never edited by hand.

export type AccountRole = "admin" | "auditor" | "member";

export interface AccountView {
  id: string;
  email: string;
  name: string;
  role: AccountRole;
  created_at: number;
  is_disabled: boolean;
  has_password: boolean;
}

export type AuditAct = "account.created" | "account.disabled" | "account.enabled" | "account.password" | "account.password_link" | "account.removed" | "account.role" | "figures.look" | "group.created" | "group.deleted" | "group.joined" | "group.left" | "group.renamed" | "identity.linked" | "identity.unlinked" | "invitation.accepted" | "invitation.created" | "invitation.revoked" | "key.created" | "key.revoked" | "library.access" | "library.archived" | "library.published" | "login.ended" | "login.failed" | "login.locked" | "quota.lifted" | "quota.set" | "session.evicted" | "session.parked" | "session.unpinned" | "session.warmed";

export type AuditDoor = "command" | "key" | "login" | "server" | "stranger";

export interface AuditPage {
  items: readonly (AuditView)[];
  next_cursor: string | null;
}

export interface AuditView {
  id: string;
  at: number;
  door: AuditDoor;
  actor_id: string | null;
  actor_email: string | null;
  act: AuditAct;
  subject_id: string | null;
  subject_email: string | null;
  details: Readonly<Record<string, unknown>>;
  request_id: string | null;
}

export interface BlockCounts {
  in_use: number;
  copying: number;
  pinned: number;
  cached: number;
  free: number;
}

export type CacheChange = "damaged" | "degraded" | "evicted" | "failed" | "forgotten" | "leased" | "let_go" | "parked" | "published" | "restored" | "spilled";

export interface CacheOverview {
  type: "cache.snapshot";
  sequence_number: number;
  boot_id: string;
  block_tokens: number;
  block_bytes: number;
  blocks: BlockCounts;
  pinned_blocks: Readonly<Record<string, number>>;
  tiers: readonly (TierCounts)[];
  sessions: Readonly<Record<string, number>>;
}

export interface CacheShares {
  pool_bytes: number;
  pinned_limit_bytes: number;
  owner_limit_bytes: number;
  owners: readonly (OwnerShare)[];
}

export type CacheState = "cold" | "parked" | "warm";

export interface CachedBySource {
  template: number;
  persona: number;
  document: number;
  session: number;
}

export type CachedShare = "0" | "<0.5" | "<0.9" | "<1";

export interface DayOfUse {
  day: string;
  model: string;
  key_id: string | null;
  requests: number;
  computed_tokens: number;
  cached_tokens: number;
  output_tokens: number;
}

export interface DraftTokens {
  started: number;
  computed: number;
  used: number;
  wasted: number;
  waiting: number;
}

export interface EngineVitals {
  model: string;
  device: string;
  boot_id: string;
  restarts: number;
  steps: number;
  step_s: number;
  running_jobs: number;
  waiting_jobs: number;
  preemptions: number;
  pool_bytes: number;
  hardware: Hardware | null;
}

export type EvictionReason = "forgotten" | "pressure" | "quota";

export interface Figures {
  type: "figures";
  at: number;
  boot_id: string;
  blocks: BlockCounts;
  tiers: readonly (TierCounts)[];
  prompt_tokens: number;
  cached_tokens: number;
  restored_tokens: number;
  computed_tokens: number;
  output_tokens: number;
  saved_s: number;
  cached_by_source: CachedBySource;
  first_turns: TurnTokens;
  later_turns: TurnTokens;
  misses: Readonly<Record<string, number>>;
  evicted_tokens: Readonly<Record<string, number>>;
  published_tokens: number;
  regretted_tokens: number;
  segments: Readonly<Record<string, number>>;
  degradations: number;
  drafts: DraftTokens;
  preemptions: number;
  running_jobs: number;
  waiting_jobs: number;
  first_token_s: Readonly<Record<string, Histogram>>;
}

export interface FiguresOverTime {
  block_bytes: number;
  samples: readonly (Figures)[];
}

export interface Gpu {
  name: string;
  held_bytes: number;
  free_bytes: number;
  total_bytes: number;
}

export interface GroupView {
  id: string;
  name: string;
  member_ids: readonly (string)[];
}

export interface Hardware {
  processor: string;
  resident_bytes: number | null;
  free_bytes: number;
  machine_bytes: number;
  gpu: Gpu | null;
}

export interface Histogram {
  bounds: readonly (number)[];
  counts: readonly (number)[];
  sum: number;
}

export interface InvitationView {
  id: string;
  note: string;
  role: AccountRole;
  group_ids: readonly (string)[];
  created_by: string;
  created_at: number;
  expires_at: number;
}

export type KeyScope = "figures" | "read" | "write";

export interface LastTurn {
  response_id: string;
  created_at: number;
  receipt: Receipt;
}

export interface Miss {
  response_id: string;
  user_id: string;
  conversation_id: string;
  model: string;
  created_at: number;
  reason: MissReason;
  differs_at: number | null;
  prompt_tokens: number;
  cached_tokens: number;
  first_token_s: number | null;
}

export interface MissPage {
  items: readonly (Miss)[];
  next_cursor: string | null;
}

export type MissReason = "below_granularity" | "engine_restart" | "evicted_idle" | "evicted_pressure" | "evicted_quota" | "first_turn" | "input_changed" | "instructions_changed" | "model_changed" | "new_branch" | "template_changed";

export interface NewInvitation {
  token: string;
  view: InvitationView;
}

export interface NewPasswordLink {
  token: string;
  expires_at: number;
}

export interface OwnedKey {
  id: string;
  name: string;
  prefix: string;
  scopes: readonly (KeyScope)[];
  created_at: number;
  last_used_at: number | null;
  expires_at: number | null;
  user_id: string;
  email: string;
}

export interface OwnerShare {
  owner_id: string;
  sessions: number;
  running: number;
  device_bytes: number;
  pinned_bytes: number;
  kept_bytes: number;
  kept_limit_bytes: number | null;
  parked_bytes: number;
}

export interface PrefixRow {
  node_id: number;
  parent_id: number | null;
  kind: SubjectKind | null;
  subject_id: string | null;
  owner_id: string | null;
  tier: Tier;
  scope: string;
  tokens: number;
  blocks: number;
  bytes: number;
  all_tokens: number;
  in_use: boolean;
  retention: string;
  hits: number;
  paths: number;
  idle_s: number;
}

export interface PrefixTree {
  nodes: readonly (PrefixRow)[];
  left_out: number;
}

export interface ProcessVitals {
  uptime_s: number | null;
  cpu_s: number | null;
  resident_bytes: number | null;
  open_files: number | null;
  most_files: number | null;
}

export interface Quota {
  kind: QuotaKind;
  allowed: number | null;
}

export type QuotaKind = "generations" | "kept_warm_bytes" | "requests_per_day" | "sockets" | "stored_bytes" | "tokens_per_day";

export interface Receipt {
  prompt_tokens: number;
  cached_tokens: number;
  restored_tokens: number;
  computed_tokens: number;
  output_tokens: number;
  cached_by_source: CachedBySource;
  miss_reason: MissReason | null;
  differs_at: number | null;
  queue_s: number;
  prefill_s: number;
  first_token_s: number | null;
  total_s: number;
  model_fingerprint: string;
  template_fingerprint: string;
  boot_id: string;
}

export interface SessionPage {
  items: readonly (SessionRow)[];
  next_cursor: string | null;
}

export interface SessionRow {
  session_id: string;
  owner_id: string;
  state: CacheState;
  is_running: boolean;
  retention: string;
  wished: string | null;
  expires_in_s: number | null;
  idle_s: number | null;
  tier: Tier;
  blocks: number;
  pinned_blocks: number;
  shared_blocks: number;
  device_tokens: number;
  host_tokens: number;
  disk_tokens: number;
  device_bytes: number;
  host_bytes: number;
  disk_bytes: number;
  last_turn: LastTurn | null;
}

export interface SettingView {
  variable: string;
  value: string | null;
  default: string;
  words: string;
}

export type SubjectKind = "document" | "owner" | "persona" | "session";

export type Tier = "device" | "disk" | "host";

export interface TierCounts {
  tier: Tier;
  segments: number;
  used_bytes: number;
  limit_bytes: number;
}

export interface TurnCost {
  response_id: string;
  created_at: number;
  prompt_tokens: number;
  cached_tokens: number;
  first_token_s: number | null;
}

export interface TurnTokens {
  turns: number;
  prompt_tokens: number;
  cached_tokens: number;
  known_tokens: number;
  found_tokens: number;
}

export interface UsageSum {
  user_id: string | null;
  model: string | null;
  key_id: string | null;
  day: string | null;
  requests: number;
  computed_tokens: number;
  cached_tokens: number;
  output_tokens: number;
}

export interface UsageView {
  quotas: readonly (Used)[];
  days: readonly (DayOfUse)[];
}

export interface Used {
  kind: QuotaKind;
  used: number | null;
  allowed: number | null;
  source: string;
  group_id: string | null;
  resets_at: number | null;
}

export interface UserSums {
  id: string;
  email: string;
  name: string;
  role: AccountRole;
  is_disabled: boolean;
  created_at: number;
  last_seen_at: number | null;
  conversations: number;
  stored_bytes: number;
  requests: number;
  computed_tokens: number;
  cached_tokens: number;
  output_tokens: number;
}

export interface Vitals {
  engine: EngineVitals | null;
  database_answers: boolean;
  process: ProcessVitals;
  open_sockets: number;
  live_turns: number;
}
