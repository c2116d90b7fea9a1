import fc from "fast-check";
import { describe, expect, it } from "vitest";

import type { PrefixRow } from "../generated/admin";
import { type Box, type Drawing, drawn, pathOf, shapeAt, visible } from "./trunks";

const node = (node_id: number, parent_id: number | null, tokens: number, all = tokens): PrefixRow =>
  ({ node_id, parent_id, tokens, all_tokens: all }) as PrefixRow;

const TREES = fc
  .array(fc.tuple(fc.nat(), fc.integer({ min: 1, max: 50 })), { minLength: 1, maxLength: 60 })
  .map((picks) =>
    picks.map(([pick, tokens], id) =>
      node(id, id === 0 || pick % 4 === 0 ? null : pick % id, tokens),
    ),
  );

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
    fc.assert(
      fc.property(TREES, (nodes) => {
        const drawing = drawn(nodes, null);
        const parents = new Set(nodes.map((one) => one.parent_id));
        expect(drawing.boxes).toHaveLength(nodes.length);
        expect(drawing.rows).toBe(nodes.filter((one) => !parents.has(one.node_id)).length);
        const shapes = visible(drawing, 2 * drawing.tokens, 2 * drawing.rows);
        expect(shapes).toHaveLength(nodes.length);
        for (const { box } of shapes) {
          expect(shapeAt(shapes, box.start + box.end, box.top + box.bottom)?.box).toBe(box);
        }
      }),
    );
  });

  it("takes a conversation of ten thousand turns", () => {
    const deep = Array.from({ length: 10_000 }, (_, id) => node(id, id ? id - 1 : null, 1));

    expect(drawn(deep, null).tokens).toBe(10_000);
    expect(visible(drawn(deep, null), 800, 26)).toHaveLength(800);
  });
});

describe("what is seen of it", () => {
  const widths = fc.integer({ min: 1, max: 90 });
  const heights = fc.integer({ min: 1, max: 40 });

  it("is at least a pixel, and of flat boxes there is one for a pixel", () => {
    fc.assert(
      fc.property(TREES, widths, heights, (nodes, width, height) => {
        const drawing = drawn(nodes, null);
        const shapes = visible(drawing, width, height);

        for (const shape of shapes) {
          expect(Math.min(shape.width, shape.height)).toBeGreaterThanOrEqual(1);
        }
        const pixels = shapes
          .filter(({ box }) => highOf(box, drawing, height) < 1)
          .flatMap(({ left, top, width: wide }) =>
            Array.from({ length: wide }, (_, at) => `${top} ${left + at}`),
          );
        expect(new Set(pixels).size).toBe(pixels.length);
      }),
    );
  });

  it("has all that is a pixel in width and height, and goes as far as the tree does", () => {
    fc.assert(
      fc.property(TREES, widths, heights, (nodes, width, height) => {
        const drawing = drawn(nodes, null);
        const shapes = visible(drawing, width, height);
        const seen = new Set(shapes.map(({ box }) => box));
        const large = drawing.boxes.filter(
          (box) =>
            (box.end * width) / drawing.tokens - (box.start * width) / drawing.tokens >= 1.001 &&
            highOf(box, drawing, height) >= 1.001,
        );

        expect(large.filter((box) => !seen.has(box))).toEqual([]);
        const ends = shapes.map((shape) => shape.left + shape.width);
        expect(Math.max(...ends)).toBeGreaterThan(width - 0.001);
      }),
    );
  });

  it.each([5000, 20_000])("of %i nodes is what fits, and each is looked at a few times", (many) => {
    const [nodes, looks] = watched(crowd(many));
    const drawing = drawn(nodes, null);
    const shapes = visible(drawing, 1200, 620);

    expect(drawing.boxes).toHaveLength(many);
    expect(shapes.length).toBeLessThanOrEqual(1 + TRUNKS + 2 * 620);
    expect(looks()).toBeLessThan(4 * many * Math.log2(many));
  });
});

const highOf = (box: Box, drawing: Drawing, height: number): number =>
  ((box.bottom - box.top) * height) / drawing.rows;

const TRUNKS = 20;

/** A persona, documents behind it, and behind these conversations of two turns. */
function crowd(many: number): PrefixRow[] {
  const half = Math.ceil((many - TRUNKS - 1) / 2);
  const parentOf = (id: number): number =>
    id <= TRUNKS ? 0 : id <= TRUNKS + half ? 1 + (id % TRUNKS) : id - half;
  return Array.from({ length: many }, (_, id) =>
    node(id, id === 0 ? null : parentOf(id), 40, many - id),
  );
}

/** The same, and how often something of them was read. */
function watched(nodes: readonly PrefixRow[]): [PrefixRow[], () => number] {
  let looks = 0;
  const get = (row: PrefixRow, name: string | symbol): unknown => {
    looks += 1;
    return Reflect.get(row, name);
  };
  return [nodes.map((one) => new Proxy(one, { get })), () => looks];
}
