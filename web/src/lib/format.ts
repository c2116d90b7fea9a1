// Words and figures for people. Pure; `now` is an argument.

import type {
  CachedBySource,
  ConversationView,
  MissReason,
  Receipt,
  Warmth,
} from "../generated/events";
import { strings } from "../strings/chat";
import { language } from "../strings/language";

const WHOLE = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat(language, {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});

export const count = (value: number): string => WHOLE.format(value);

const MOMENT = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });

/** A point in time, given in seconds of the epoch, on the reader's clock. */
export const moment = (at: number): string => MOMENT.format(at * 1000);

const UNITS = ["B", "KiB", "MiB", "GiB"];

/** "1.5 MiB". */
export function size(bytes: number): string {
  const steps = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** steps;
  return `${steps === 0 || value >= 100 ? count(value) : TENTHS.format(value)} ${UNITS[steps]}`;
}

/** "48 ms", "1.3 s", "2 min 5 s". */
export function duration(seconds: number): string {
  const ms = seconds * 1000;
  if (ms < 0.95) return strings.underMs;
  if (ms < 999.5) return `${WHOLE.format(ms)} ms`;
  if (seconds < 59.95) return `${TENTHS.format(seconds)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** "37 new, 412 from cache, first token 48 ms". */
export function receiptLine(receipt: Receipt): string {
  const parts = [
    strings.newTokens(count(receipt.computed_tokens)),
    strings.fromCache(count(receipt.cached_tokens)),
  ];
  if (receipt.first_token_s !== null) {
    parts.push(strings.firstToken(duration(receipt.first_token_s)));
  }
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

const KINDS = ["template", "persona", "document", "session", "computed"] as const;

/** What the prompt was made of, in its order; nothing for what is zero. */
export function shares(receipt: Receipt): Share[] {
  const tokensOf = { ...receipt.cached_by_source, computed: receipt.computed_tokens };
  // What a first turn finds behind the persona, its owner said elsewhere.
  const isFirst = receipt.miss_reason === "first_turn";
  let sum = 0;
  return KINDS.map((kind) => {
    const start = sum / receipt.prompt_tokens;
    sum += tokensOf[kind];
    return {
      kind,
      name: strings.sources[isFirst && kind === "session" ? "others" : kind],
      tokens: tokensOf[kind],
      start,
      end: sum / receipt.prompt_tokens,
    };
  }).filter(({ tokens }) => tokens > 0);
}

/** "Waited 2 ms, read what was new in 237 ms, wrote 15 tokens in 2.4 s, 7 a second." */
export function timesLine(receipt: Receipt): string {
  const rate = speed(receipt);
  const times = strings.times(
    duration(receipt.queue_s),
    duration(receipt.prefill_s),
    count(receipt.output_tokens),
    duration(receipt.total_s),
  );
  return rate === null ? `${times}.` : `${times}, ${strings.speed(count(rate))}.`;
}

export const missWords = (reason: MissReason): string => strings.misses[reason];

/** What the next turn will cost, in a sentence; empty where nothing was computed yet. */
export function warmthWords(warmth: Warmth): string {
  const { state, device_tokens: ready, host_tokens: near, disk_tokens: far } = warmth;
  if (state === "warm") {
    return strings.isWarm(count(ready));
  }
  if (state === "parked") {
    return strings.isParked(count(near + far));
  }
  return strings.isCold;
}

export const titleOf = (conversation: Pick<ConversationView, "title"> | null): string =>
  conversation?.title.trim() || strings.newConversation;

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
    const label = item.pinned ? strings.pinned : dayLabel(item.updated_at, today);
    groups.set(label, [...(groups.get(label) ?? []), item]);
  }
  return [...groups].map(([label, items]) => ({ label, items }));
}

function dayLabel(at: number, today: number): string {
  if (at >= today) return strings.today;
  if (at >= today - DAY_S) return strings.yesterday;
  if (at >= today - 7 * DAY_S) return strings.pastWeek;
  return strings.older;
}
