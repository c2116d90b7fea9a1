// Words and figures for people. Pure; `now` is an argument.

import type { CachedBySource, ConversationView, MissReason, Receipt } from "../generated/events";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value: number): string => WHOLE.format(value);

/** "48 ms", "1.3 s", "2 min 5 s". */
export function duration(seconds: number): string {
  const ms = seconds * 1000;
  if (ms < 0.95) return "under 1 ms";
  if (ms < 999.5) return `${WHOLE.format(ms)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** "37 new, 412 from cache, first token 48 ms". */
export function receiptLine(receipt: Receipt): string {
  const parts = [
    `${count(receipt.computed_tokens)} new`,
    `${count(receipt.cached_tokens)} from cache`,
  ];
  if (receipt.first_token_s !== null) parts.push(`first token ${duration(receipt.first_token_s)}`);
  return parts.join(", ");
}

/** Share of the prompt that was warm, 0 to 1. */
export function warmth(receipt: Receipt): number {
  return receipt.prompt_tokens ? receipt.cached_tokens / receipt.prompt_tokens : 0;
}

/** Output tokens a second after the first; null where there is too little to tell. */
export function speed(receipt: Receipt): number | null {
  if (receipt.first_token_s === null || receipt.output_tokens < 2) return null;
  const seconds = receipt.total_s - receipt.first_token_s;
  return seconds > 0 ? (receipt.output_tokens - 1) / seconds : null;
}

/** One kind of prompt tokens; `start` and `end` are shares of the prompt, `[start, end)`. */
export interface Share {
  readonly kind: keyof CachedBySource | "computed";
  readonly name: string;
  readonly tokens: number;
  readonly start: number;
  readonly end: number;
}

const KINDS: readonly (readonly [Share["kind"], string])[] = [
  ["template", "from the model’s own opening, shared"],
  ["persona", "from the persona, shared"],
  ["document", "from a document, shared"],
  ["session", "from this conversation"],
  ["computed", "new"],
];

/** What the prompt was made of, in its order; nothing for what is zero. */
export function shares(receipt: Receipt): Share[] {
  const tokensOf = { ...receipt.cached_by_source, computed: receipt.computed_tokens };
  let sum = 0;
  return KINDS.map(([kind, name]) => {
    const start = sum / receipt.prompt_tokens;
    sum += tokensOf[kind];
    return { kind, name, tokens: tokensOf[kind], start, end: sum / receipt.prompt_tokens };
  }).filter(({ tokens }) => tokens > 0);
}

/** "Waited 2 ms, read what was new in 237 ms, wrote 15 tokens in 2.4 s, 7 a second." */
export function timesLine(receipt: Receipt): string {
  const rate = speed(receipt);
  return (
    `Waited ${duration(receipt.queue_s)}, read what was new in ${duration(receipt.prefill_s)}, ` +
    `wrote ${count(receipt.output_tokens)} tokens in ${duration(receipt.total_s)}` +
    (rate === null ? "." : `, ${count(rate)} a second.`)
  );
}

const MISSES: Readonly<Record<MissReason, string>> = {
  first_turn: "This was the conversation’s first turn, so nothing of it was warm yet.",
  new_branch: "This turn left the earlier branch, so what follows the fork was new.",
  input_changed: "The history that was sent differs from the one that was warm.",
  instructions_changed: "The instructions changed, so everything after them was computed anew.",
  template_changed: "The chat template changed, so the history was computed anew once.",
  model_changed: "The model changed, so the history was computed anew once.",
  evicted_idle: "The conversation rested for long and made room for others.",
  evicted_pressure: "Memory was needed for other conversations.",
  evicted_quota: "The share of memory for one user was used up.",
  engine_restart: "The engine was started anew and had forgotten this conversation.",
  below_granularity: "What could be reused was smaller than the smallest unit kept.",
};

export const missWords = (reason: MissReason): string => MISSES[reason];

export const titleOf = (conversation: Pick<ConversationView, "title"> | null): string =>
  conversation?.title.trim() || "New conversation";

const DAY_S = 86_400;

/** The list in order of the last change, what is pinned first, cut into "Today" and so on. */
export function byDay(
  conversations: readonly ConversationView[],
  now: Date,
): { readonly label: string; readonly items: ConversationView[] }[] {
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime() / 1000;
  const groups = new Map<string, ConversationView[]>();
  const inOrder = [...conversations].sort(
    (a, b) => Number(b.pinned) - Number(a.pinned) || b.updated_at - a.updated_at,
  );
  for (const item of inOrder) {
    const label = item.pinned ? "Pinned" : dayLabel(item.updated_at, today);
    groups.set(label, [...(groups.get(label) ?? []), item]);
  }
  return [...groups].map(([label, items]) => ({ label, items }));
}

function dayLabel(at: number, today: number): string {
  if (at >= today) return "Today";
  if (at >= today - DAY_S) return "Yesterday";
  if (at >= today - 7 * DAY_S) return "Past week";
  return "Older";
}
