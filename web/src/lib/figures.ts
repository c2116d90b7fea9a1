// Figures as people read them, in the page's language. Pure.

import { language } from "../strings/language";

const WHOLE = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 });
const PERCENT = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 });
const WHEN = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
const DAY = new Intl.DateTimeFormat(language, { dateStyle: "medium" });

const unit = (name: string, digits = 0): Intl.NumberFormat =>
  new Intl.NumberFormat(language, {
    style: "unit",
    unit: name,
    unitDisplay: "short",
    maximumFractionDigits: digits,
  });
const MS = unit("millisecond");
const SECONDS = unit("second", 1);
const MINUTES = unit("minute");
const HOURS = unit("hour", 1);
const DAYS = unit("day", 1);

export const count = (value: number): string => WHOLE.format(value);
export const short = (value: number): string =>
  value < 10_000 ? WHOLE.format(value) : SHORT.format(value);
/** Which token of a prompt it is, as people count: the first is number 1. */
export const ordinal = (position: number | null): string =>
  position === null ? "–" : WHOLE.format(position + 1);
export const percent = (value: number | null): string =>
  value === null ? "–" : PERCENT.format(value);

export function span(seconds: number | null): string {
  if (seconds === null) return "–";
  if (seconds < 0.9995) return MS.format(seconds * 1000);
  if (seconds < 99.95) return SECONDS.format(seconds);
  if (seconds < 5400) return MINUTES.format(seconds / 60);
  return seconds < 172_800 ? HOURS.format(seconds / 3600) : DAYS.format(seconds / 86_400);
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"] as const;
const SIZE = new Intl.NumberFormat(language, { maximumSignificantDigits: 3 });

export function bytes(value: number): string {
  let rest = value;
  let at = 0;
  while (rest >= 1000 && at < SIZES.length - 1) {
    rest /= 1024;
    at += 1;
  }
  return `${SIZE.format(rest)} ${SIZES[at]}`;
}

export const when = (at: number | null): string =>
  at === null ? "–" : WHEN.format(new Date(at * 1000));
export const day = (at: number): string => DAY.format(new Date(at * 1000));
