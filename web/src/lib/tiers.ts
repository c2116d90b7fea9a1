// How a drawing tells where a part lies: memory is striped, disk is striped twice. Pure.

import type { Tier } from "../generated/admin";

export const TILE_PX = 8;
const STRIPE_PX = 2;

/** Whether a pixel of the tile is paper. Stripes rise to the right; those of a disk fall as well. */
export function isPaper(tier: Tier, x: number, y: number): boolean {
  const rises = (x + y) % TILE_PX < STRIPE_PX;
  const falls = (x - y + TILE_PX) % TILE_PX < STRIPE_PX;
  return tier === "host" ? rises : tier === "disk" && (rises || falls);
}
