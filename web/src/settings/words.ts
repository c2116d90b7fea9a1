// Words for what the settings show. Pure; `now` is an argument.

import { count, size } from "../lib/format";
import type { Item, Weight } from "../lib/library";
import { language } from "../strings/language";
import { strings } from "../strings/settings";
import type { DayOfUse } from "./api";

const SHARE = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 });
const DAY = new Intl.DateTimeFormat(language, { dateStyle: "medium" });
const UTC_DAY = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeZone: "UTC" });
const AWAY = new Intl.RelativeTimeFormat(language, { numeric: "auto" });

export const share = (part: number): string => SHARE.format(part);
export const date = (at: number): string => DAY.format(at * 1000);
/** Of a day of UTC, as `2026-12-31`. */
export const dayName = (day: string): string => UTC_DAY.format(Date.parse(`${day}T00:00:00Z`));

const UNITS: readonly (readonly [number, Intl.RelativeTimeFormatUnit])[] = [
  [86_400, "day"],
  [3600, "hour"],
  [60, "minute"],
];

/** "in 3 hours", "yesterday"; a date where it is more than a month away. */
export function away(at: number, now: Date): string {
  const seconds = at - now.getTime() / 1000;
  if (Math.abs(seconds) > 30 * 86_400) return date(at);
  const found = UNITS.find(([unit]) => Math.abs(seconds) >= unit);
  return found === undefined
    ? AWAY.format(0, "minute")
    : AWAY.format(Math.round(seconds / found[0]), found[1]);
}

export const amount = (kind: string, value: number): string =>
  kind.endsWith("_bytes") ? size(value) : count(value);

export interface DaySum {
  readonly turns: number;
  readonly anew: number;
  readonly warm: number;
  readonly written: number;
}

/** Each day once, whatever the model and the key, in the order in which they came. */
export function byDay(days: readonly DayOfUse[]): (readonly [string, DaySum])[] {
  const sums = new Map<string, DaySum>();
  for (const one of days) {
    const sum = sums.get(one.day) ?? { turns: 0, anew: 0, warm: 0, written: 0 };
    sums.set(one.day, {
      turns: sum.turns + one.requests,
      anew: sum.anew + one.computed_tokens,
      warm: sum.warm + one.cached_tokens,
      written: sum.written + one.output_tokens,
    });
  }
  return [...sums];
}

export const tokens = (value: number): string => strings.tokens(count(value), value === 1);

export const tokensOf = (item: Pick<Item, "tokens">): string =>
  item.tokens === null ? strings.notCounted : tokens(item.tokens);

export function weight({ tokens: sum, isMore }: Weight): string {
  return isMore ? strings.tokensOrMore(count(sum)) : tokens(sum);
}

const BROWSERS: readonly (readonly [RegExp, string])[] = [
  [/\bEdg(e|A|iOS)?\//, "Edge"],
  [/\bOPR\//, "Opera"],
  [/\b(Firefox|FxiOS)\//, "Firefox"],
  [/\b(Chrome|CriOS|Chromium|HeadlessChrome)\//, "Chrome"],
  [/\bSafari\//, "Safari"],
];
const SYSTEMS: readonly (readonly [RegExp, string])[] = [
  [/\b(iPhone|iPad)\b/, "iOS"],
  [/\bAndroid\b/, "Android"],
  [/\bWindows\b/, "Windows"],
  [/\bMac OS X\b/, "macOS"],
  [/\bCrOS\b/, "ChromeOS"],
  [/\bLinux\b/, "Linux"],
];

/** "Firefox on Linux", as far as what a browser says of itself tells. */
export function device(userAgent: string): string {
  const known = (names: readonly (readonly [RegExp, string])[]): string | undefined =>
    names.find(([form]) => form.test(userAgent))?.[1];
  return strings.on(
    known(BROWSERS) ?? strings.unknownBrowser,
    known(SYSTEMS) ?? strings.unknownSystem,
  );
}
