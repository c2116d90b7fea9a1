// From counters to what a chart shows: what was added in each stretch of time. Pure.

import type { Figures } from "../generated/admin";

/** Samples of one length of time, led by the last one before it. */
export interface Stretch {
  readonly start: number;
  readonly samples: readonly Figures[];
}

export type Counter = (sample: Figures) => number;

/** What a counter rose by, over all samples. After a restart of the engine it begins at nothing. */
export function total(samples: readonly Figures[], counter: Counter): number {
  let sum = 0;
  let before: Figures | null = null;
  for (const sample of samples) {
    if (before) {
      const isNew = before.boot_id !== sample.boot_id;
      sum += Math.max(0, counter(sample) - (isNew ? 0 : counter(before)));
    }
    before = sample;
  }
  return sum;
}

/** What a rise over these samples comes to in an hour; null where they span no time. */
export function perHour(samples: readonly Figures[], rise: number): number | null {
  const [first, last] = [samples[0], samples.at(-1)];
  return first && last && last.at > first.at ? (rise * 3600) / (last.at - first.at) : null;
}

/** The samples in stretches of one length, which begin at its multiples. */
export function stretches(samples: readonly Figures[], lengthS: number): Stretch[] {
  const cut: { start: number; samples: Figures[] }[] = [];
  let before: Figures | null = null;
  for (const sample of samples) {
    const start = Math.floor(sample.at / lengthS) * lengthS;
    const current = cut.at(-1);
    if (current?.start === start) current.samples.push(sample);
    else cut.push({ start, samples: before ? [before, sample] : [sample] });
    before = sample;
  }
  return cut;
}

/** Of a list with the newest first what is not older: the rest of it is not looked at. */
export function since<T extends { readonly created_at: number }>(
  newest: readonly T[],
  at: number,
): readonly T[] {
  const end = newest.findIndex((one) => one.created_at < at);
  return end < 0 ? newest : newest.slice(0, end);
}

/** Where on the time axis each stretch stands; the last one is as long as time has come. */
export const middles = (
  cut: readonly { readonly start: number }[],
  lengthS: number,
  to: number,
): number[] => cut.map(({ start }) => (start + Math.min(start + lengthS, to)) / 2);

/** A part of a whole, 0 to 1; null where there is no whole. */
export const share = (part: number, whole: number): number | null => (whole ? part / whole : null);

/**
 * With a new sample. The last one gives way to it as long as it is nearer to the one before than
 * `apartS`; what is older than `sinceS` is let go.
 */
export function appended(
  samples: readonly Figures[],
  sample: Figures,
  apartS: number,
  sinceS: number,
): readonly Figures[] {
  const last = samples.at(-1);
  const before = samples.at(-2);
  if (last && sample.at <= last.at) return samples;
  const gives = last && before && last.boot_id === before.boot_id && last.at - before.at < apartS;
  const kept = gives ? samples.slice(0, -1) : samples;
  return [...kept.filter((one) => one.at >= sample.at - sinceS), sample];
}

/** The least of 1, 2 and 5 times a power of ten that is not below. */
export function roundAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((one) => one * power >= value) ?? 10);
}

/** Each series on top of those before it, as lines for a chart. */
export function stacked(series: readonly (readonly number[])[]): number[][] {
  const heights: number[] = [];
  return series.map((values) =>
    values.map((value, at) => (heights[at] = (heights[at] ?? 0) + value)),
  );
}
