import { describe, expect, it } from "vitest";

import type { Figures } from "../generated/admin";
import { appended, middles, perHour, share, since, stacked, stretches, total } from "./series";

const sample = (at: number, computed_tokens: number, boot_id = "one"): Figures =>
  ({ at, computed_tokens, boot_id }) as Figures;
const computed = (one: Figures): number => one.computed_tokens;

describe("what was added over time", () => {
  it("is the sum of rises, and begins at nothing with a new engine", () => {
    const samples = [sample(0, 100), sample(5, 130), sample(10, 7, "two"), sample(15, 9, "two")];

    expect(total(samples, computed)).toBe(39);
    expect(total([], computed)).toBe(0);
  });

  it("is in its stretches as much as in all", () => {
    const samples = [0, 5, 29, 30, 31, 95].map((at) => sample(at, at * at));
    const cut = stretches(samples, 30);

    expect(cut.map((one) => one.start)).toEqual([0, 30, 90]);
    const sums = cut.map((one) => total(one.samples, computed));
    expect(sums.reduce((sum, one) => sum + one, 0)).toBe(total(samples, computed));
    expect(sums[0]).toBe(29 * 29);
  });
});

describe("a stretch on the axis", () => {
  it("stands in its middle, and the last one in the middle of what has come of it", () => {
    const cut = stretches(
      [0, 35, 95].map((at) => sample(at, 0)),
      30,
    );

    expect(middles(cut, 30, 95)).toEqual([15, 45, 92.5]);
  });
});

describe("a new sample", () => {
  it("takes the last one's place until that is far enough from the one before", () => {
    const grown = [2, 4, 6, 8, 10].reduce<readonly Figures[]>(
      (all, at) => appended(all, sample(at, 0), 5, 100),
      [sample(0, 0)],
    );

    expect(grown.map((one) => one.at)).toEqual([0, 6, 10]);
  });

  it("leaves the last of an engine that is gone where it is", () => {
    const samples = [sample(0, 9), sample(1, 9, "two")];

    expect(appended(samples, sample(2, 10, "two"), 5, 100)).toHaveLength(3);
  });

  it("lets go of what is too old, and does not go back", () => {
    const samples = [sample(0, 0), sample(50, 0)];

    expect(appended(samples, sample(101, 0), 5, 100).map((one) => one.at)).toEqual([50, 101]);
    expect(appended(samples, sample(50, 0), 5, 100)).toBe(samples);
  });
});

it("series that lie on each other sum up", () => {
  expect(
    stacked([
      [1, 2],
      [10, 0],
    ]),
  ).toEqual([
    [1, 2],
    [11, 2],
  ]);
});

it("of a list with the newest first, what is older than a time is left out", () => {
  const list = [30, 20, 10].map((created_at) => ({ created_at }));

  expect(since(list, 20)).toEqual(list.slice(0, 2));
  expect(since(list, 5)).toBe(list);
  expect(since(list, 31)).toEqual([]);
});

it("a rise comes to so much in an hour, where there is time between samples", () => {
  const samples = [sample(0, 0), sample(90, 0), sample(900, 0)];

  expect(perHour(samples, 5)).toBe(20);
  expect([perHour([sample(7, 0)], 5), perHour([], 5)]).toEqual([null, null]);
});

it("there is no share of nothing", () => {
  expect([share(1, 4), share(0, 0)]).toEqual([0.25, null]);
});
