import fc from "fast-check";
import { describe, expect, it } from "vitest";

import type { PrefixRow } from "../generated/admin";
import { boxAt, drawn, pathOf } from "./trunks";

const node = (node_id: number, parent_id: number | null, tokens: number, all = tokens): PrefixRow =>
  ({ node_id, parent_id, tokens, all_tokens: all }) as PrefixRow;

const TREE = [node(1, null, 100, 160), node(2, 1, 20), node(3, 1, 40), node(4, null, 5)];

describe("the prefix tree, drawn", () => {
  it("runs from left to right by tokens, with a row for each end", () => {
    const places = drawn(TREE, null).boxes.map((box) => [
      box.row.node_id,
      [box.start, box.end],
      [box.top, box.bottom],
    ]);

    expect(places).toEqual([
      [1, [0, 100], [0, 2]],
      [3, [100, 140], [0, 1]],
      [2, [100, 120], [1, 2]],
      [4, [0, 5], [2, 3]],
    ]);
  });

  it("shows a branch alone", () => {
    const { boxes, tokens, rows } = drawn(TREE, 3);

    expect([boxes.length, tokens, rows]).toEqual([1, 40, 1]);
    expect(pathOf(TREE, 3).map((row) => row.node_id)).toEqual([1, 3]);
    expect(pathOf(TREE, null)).toEqual([]);
  });

  it("of any shape covers nothing twice and leaves no end without a row", () => {
    const shapes = fc
      .array(fc.tuple(fc.nat(), fc.integer({ min: 1, max: 50 })), { minLength: 1, maxLength: 60 })
      .map((picks) =>
        picks.map(([pick, tokens], id) =>
          node(id, id === 0 || pick % 4 === 0 ? null : pick % id, tokens),
        ),
      );
    fc.assert(
      fc.property(shapes, (nodes) => {
        const drawing = drawn(nodes, null);
        const parents = new Set(nodes.map((one) => one.parent_id));
        expect(drawing.boxes).toHaveLength(nodes.length);
        expect(drawing.rows).toBe(nodes.filter((one) => !parents.has(one.node_id)).length);
        for (const box of drawing.boxes) {
          expect(boxAt(drawing, (box.start + box.end) / 2, (box.top + box.bottom) / 2)).toBe(box);
        }
      }),
    );
  });

  it("takes a conversation of ten thousand turns", () => {
    const deep = Array.from({ length: 10_000 }, (_, id) => node(id, id ? id - 1 : null, 1));

    expect(drawn(deep, null).tokens).toBe(10_000);
  });
});
