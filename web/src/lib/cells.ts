// A pool as cells that each stand for the same number of blocks. Pure.

import { roundAbove } from "./series";

export interface Cells {
  /** So many blocks is one cell. */
  readonly each: number;
  /** Cells of each state, in the order in which the blocks were given. */
  readonly counts: readonly number[];
}

/** At most `most` cells, each for as few blocks as that allows, and for a round number of them. */
export function cellsOf(blocks: readonly number[], most: number): Cells {
  const each = roundAbove(Math.max(1, sum(blocks) / most));
  return { each, counts: apportioned(blocks, each) };
}

/**
 * Largest remainders: no state is a whole cell from its due, a state without a block has no cell,
 * and together they are the pool, whose last cell may be a part of one.
 */
function apportioned(blocks: readonly number[], each: number): number[] {
  const counts = blocks.map((count) => Math.floor(count / each));
  const left = Math.ceil(sum(blocks) / each) - sum(counts);
  const byRest = blocks
    .map((count, at) => ({ at, rest: count % each }))
    .sort((a, b) => b.rest - a.rest || a.at - b.at);
  for (const { at } of byRest.slice(0, left)) counts[at] = (counts[at] ?? 0) + 1;
  return counts;
}

const sum = (numbers: readonly number[]): number => numbers.reduce((all, one) => all + one, 0);
