import fc from "fast-check";
import { describe, expect, it } from "vitest";

import { cellsOf } from "./cells";

const sum = (numbers: readonly number[]): number => numbers.reduce((all, one) => all + one, 0);

describe("a pool as cells", () => {
  it("is its blocks themselves where they are few", () => {
    expect(cellsOf([3, 0, 1, 20, 340], 600)).toEqual({ each: 1, counts: [3, 0, 1, 20, 340] });
    expect(cellsOf([0, 0, 0], 600)).toEqual({ each: 1, counts: [0, 0, 0] });
  });

  it("gives what is left over to the largest remainders", () => {
    expect(cellsOf([14, 8, 1, 27, 0], 5)).toEqual({ each: 10, counts: [1, 1, 0, 3, 0] });
  });

  it("of any size is the whole pool, and no state is a whole cell from its due", () => {
    const blocks = fc.array(fc.nat(3_000_000), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(blocks, fc.integer({ min: 1, max: 600 }), (pool, most) => {
        const { each, counts } = cellsOf(pool, most);
        const cells = sum(counts);

        expect(cells).toBeLessThanOrEqual(most);
        expect(cells).toBe(Math.ceil(sum(pool) / each));
        for (const [at, count] of counts.entries()) {
          expect(Math.abs(count - (pool[at] ?? 0) / each)).toBeLessThan(1);
        }
      }),
    );
  });

  it("has cells of a round number of blocks, no more of them than are needed", () => {
    const numbers = [600, 601, 1200, 1201, 3000, 3001, 6000, 60_001].map(
      (free) => cellsOf([free], 600).each,
    );

    expect(numbers).toEqual([1, 2, 2, 5, 5, 10, 10, 200]);
  });
});
