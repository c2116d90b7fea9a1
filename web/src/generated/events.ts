// Generated from app/frames.py by `npm run generate`; never edited by hand.

export interface BlockCounts {
  in_use: number;
  copying: number;
  pinned: number;
  cached: number;
  free: number;
}

export type CacheChange = "damaged" | "degraded" | "evicted" | "failed" | "forgotten" | "leased" | "let_go" | "parked" | "published" | "restored" | "spilled";

export type CacheState = "cold" | "parked" | "warm";

export interface CachedBySource {
  template: number;
  persona: number;
  document: number;
  session: number;
}

export type CachedShare = "0" | "<0.5" | "<0.9" | "<1";

export interface CancelAccepted {
  type: "response.cancel.accepted";
  request_id: string;
  response_id: string;
  step: number | null;
}

export interface ConversationChanged {
  type: "conversation.changed";
  conversation: ConversationView;
}

export interface ConversationDeleted {
  type: "conversation.deleted";
  conversation_id: string;
}

export interface ConversationView {
  id: string;
  title: string;
  persona_id: string | null;
  persona_version: number | null;
  document_ids: readonly (string)[];
  leaf_id: string | null;
  created_at: number;
  updated_at: number;
  archived: boolean;
  pinned: boolean;
  kept_warm: boolean;
  continues_id: string | null;
}

export interface ConversationWarmth {
  type: "conversation.warmth";
  conversations: readonly (Warmth)[];
}

export interface Cursor {
  response_id: string;
  after: number;
  epoch: string;
}

export interface Draft {
  type: "draft";
  conversation_id: string | null;
  parent_id: string | null;
  text: string;
  persona_id?: string | null;
  document_ids?: readonly (string)[];
}

export interface DraftTokens {
  started: number;
  computed: number;
  used: number;
  wasted: number;
  waiting: number;
}

export interface ErrorFrame {
  type: "error";
  request_id: string | null;
  error: Problem;
}

export interface Event {
  type: "event";
  conversation_id: string;
  response_id: string;
  epoch: string;
  event: ResponseCreated | ResponseInProgress | ItemAdded | PartAdded | TextDelta | TextDone | PartDone | ItemDone | ResponseEnded;
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

export interface FiguresUnwatch {
  type: "figures.unwatch";
  request_id: string;
}

export interface FiguresUnwatched {
  type: "figures.unwatched";
  request_id: string;
}

export interface FiguresWatch {
  type: "figures.watch";
  request_id: string;
}

export interface FiguresWatched {
  type: "figures.watched";
  request_id: string;
}

export interface Hello {
  type: "hello";
  protocol: number;
}

export interface Histogram {
  bounds: readonly (number)[];
  counts: readonly (number)[];
  sum: number;
}

export interface ItemAdded {
  type: "response.output_item.added";
  sequence_number: number;
  item_id: string;
}

export interface ItemDone {
  type: "response.output_item.done";
  sequence_number: number;
  item_id: string;
  text: string;
}

export interface LeafChoose {
  type: "leaf.choose";
  request_id: string;
  conversation_id: string;
  message_id: string;
}

export interface LeafChosen {
  type: "leaf.chosen";
  request_id: string;
  conversation_id: string;
  leaf_id: string;
}

export interface MessageAdded {
  type: "message.added";
  message: MessageView;
}

export interface MessageView {
  id: string;
  conversation_id: string;
  parent_id: string | null;
  role: string;
  text: string;
  created_at: number;
  client_message_id: string | null;
  response: ResponseView | null;
}

export interface MessagesDeleted {
  type: "messages.deleted";
  conversation_id: string;
  message_ids: readonly (string)[];
}

export type MissReason = "below_granularity" | "engine_restart" | "evicted_idle" | "evicted_pressure" | "evicted_quota" | "first_turn" | "input_changed" | "instructions_changed" | "model_changed" | "new_branch" | "template_changed";

export interface PageOpened {
  type: "page.opened";
  protocol: number;
  page_id: string;
  epoch: string;
  user_id: string;
}

export interface PartAdded {
  type: "response.content_part.added";
  sequence_number: number;
  item_id: string;
}

export interface PartDone {
  type: "response.content_part.done";
  sequence_number: number;
  item_id: string;
  text: string;
}

export interface Presence {
  type: "presence";
  conversation_id: string;
  state: PresenceState;
}

export interface PresenceChanged {
  type: "presence.changed";
  conversations: readonly (Shown)[];
}

export type PresenceState = "closed" | "hidden" | "open" | "typing";

export interface Problem {
  code: string;
  message: string;
  field: string | null;
  retry_after_s: number | null;
  quota: QuotaFault | null;
}

export interface QuotaFault {
  kind: string;
  limit: number;
  resets_at: number | null;
}

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

export interface ResponseCancel {
  type: "response.cancel";
  request_id: string;
  response_id: string;
}

export interface ResponseCreated {
  type: "response.created";
  sequence_number: number;
  response: ResponseView;
}

export interface ResponseEnded {
  type: "response.ended";
  sequence_number: number;
  response: ResponseView;
  text: string;
}

export interface ResponseInProgress {
  type: "response.in_progress";
  sequence_number: number;
  response: ResponseView;
}

export interface ResponseStarted {
  type: "response.started";
  response: ResponseView;
}

export type ResponseStatus = "cancelled" | "completed" | "failed" | "in_progress" | "incomplete" | "queued";

export interface ResponseView {
  id: string;
  conversation_id: string | null;
  message_id: string;
  parent_id: string | null;
  status: ResponseStatus;
  model: string;
  created_at: number;
  completed_at: number | null;
  incomplete_reason: string | null;
  error: Problem | null;
  usage: Usage | null;
  receipt: Receipt | null;
}

export interface Shown {
  conversation_id: string;
  open: number;
  typing: number;
  hidden: number;
}

export interface Snapshot {
  type: "snapshot";
  response: ResponseView;
  epoch: string;
  text: string;
  sequence_number: number;
}

export interface Subscribe {
  type: "subscribe";
  request_id: string;
  conversation_id: string;
  cursors?: readonly (Cursor)[];
}

export interface Subscribed {
  type: "subscribed";
  request_id: string;
  conversation_id: string;
  leaf_id: string | null;
}

export interface SummaryCreate {
  type: "summary.create";
  request_id: string;
  conversation_id: string;
  client_message_id: string;
  leaf_id: string;
  text?: string;
}

export interface SummaryCreated {
  type: "summary.created";
  request_id: string;
  conversation: ConversationView;
}

export interface TextDelta {
  type: "response.output_text.delta";
  sequence_number: number;
  item_id: string;
  delta: string;
  logprobs: readonly (TokenLogprobs)[];
}

export interface TextDone {
  type: "response.output_text.done";
  sequence_number: number;
  item_id: string;
  text: string;
  logprobs: readonly (TokenLogprobs)[];
}

export type Tier = "device" | "disk" | "host";

export interface TierCounts {
  tier: Tier;
  segments: number;
  used_bytes: number;
  limit_bytes: number;
}

export interface TokenLogprob {
  token_id: number;
  token: string;
  logprob: number;
}

export interface TokenLogprobs {
  chosen: TokenLogprob;
  top: readonly (TokenLogprob)[];
}

export interface TurnAccepted {
  type: "turn.accepted";
  request_id: string;
  message: MessageView | null;
  response: ResponseView;
}

export interface TurnContinue {
  type: "turn.continue";
  request_id: string;
  conversation_id: string;
  client_message_id: string;
  message_id: string;
  leaf_id: string;
}

export interface TurnCreate {
  type: "turn.create";
  request_id: string;
  conversation_id: string;
  client_message_id: string;
  parent_id: string | null;
  text: string;
}

export interface TurnEdit {
  type: "turn.edit";
  request_id: string;
  conversation_id: string;
  client_message_id: string;
  message_id: string;
  leaf_id: string;
  text: string;
}

export interface TurnRegenerate {
  type: "turn.regenerate";
  request_id: string;
  conversation_id: string;
  client_message_id: string;
  message_id: string;
  leaf_id: string;
}

export interface TurnTokens {
  turns: number;
  prompt_tokens: number;
  cached_tokens: number;
  known_tokens: number;
  found_tokens: number;
}

export interface Unsubscribe {
  type: "unsubscribe";
  request_id: string;
  conversation_id: string;
}

export interface Unsubscribed {
  type: "unsubscribed";
  request_id: string;
  conversation_id: string;
}

export interface Usage {
  input_tokens: number;
  cached_tokens: number;
  output_tokens: number;
}

export interface Warmth {
  conversation_id: string;
  state: CacheState;
  device_tokens: number;
  host_tokens: number;
  disk_tokens: number;
}

export interface Welcome {
  type: "welcome";
  protocol: number;
  epoch: string;
  user_id: string;
}

export type InwardFrame = Hello | Subscribe | Unsubscribe | TurnCreate | TurnEdit | TurnRegenerate | TurnContinue | LeafChoose | SummaryCreate | ResponseCancel | Presence | Draft | FiguresWatch | FiguresUnwatch;

export type OutwardFrame = Welcome | Subscribed | Unsubscribed | TurnAccepted | CancelAccepted | LeafChosen | SummaryCreated | FiguresWatched | Figures | FiguresUnwatched | MessageAdded | MessagesDeleted | Event | Snapshot | ConversationChanged | ConversationDeleted | ConversationWarmth | PresenceChanged | ErrorFrame;

export type StreamFrame = PageOpened | ResponseStarted | MessageAdded | MessagesDeleted | ConversationChanged | ConversationDeleted | ConversationWarmth | PresenceChanged;

export const PROTOCOL = 1;
