import { expect, it } from "vitest";

import type { Tier } from "../generated/admin";
import { isPaper, TILE_PX } from "./tiers";

it("tiers are told apart in every row of pixels, so that the flattest part shows its own", () => {
  const steps = Array.from({ length: TILE_PX }, (_, at) => at);
  const paper = (tier: Tier, y: number): number => steps.filter((x) => isPaper(tier, x, y)).length;

  for (const y of steps) {
    expect(paper("device", y)).toBe(0);
    expect(paper("host", y)).toBeGreaterThan(0);
    expect(paper("disk", y)).toBeGreaterThanOrEqual(paper("host", y));
  }
  const all = (tier: Tier): number => steps.reduce((sum, y) => sum + paper(tier, y), 0);
  expect(all("disk")).toBeGreaterThan(1.5 * all("host"));
});
