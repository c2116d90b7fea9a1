// The prefix tree as it is drawn: from left to right as a prompt runs, a row for each end. Pure.

import type { PrefixRow } from "../generated/admin";

/** A node's place: `start` and `end` in tokens from a prompt's beginning, `top` and `bottom` in rows. */
export interface Box {
  readonly row: PrefixRow;
  readonly start: number;
  readonly end: number;
  readonly top: number;
  readonly bottom: number;
  readonly depth: number;
}

export interface Drawing {
  /** Parents before their children, rows from top to bottom. */
  readonly boxes: readonly Box[];
  readonly tokens: number;
  readonly rows: number;
}

/**
 * Lays out the whole tree, or what is at and behind `root`. The largest branches come first; nothing
 * is recursive, for a long conversation is a deep tree.
 */
export function drawn(nodes: readonly PrefixRow[], root: number | null): Drawing {
  const children = new Map<number | null, PrefixRow[]>();
  for (const node of nodes) {
    const siblings = children.get(node.parent_id);
    if (siblings) siblings.push(node);
    else children.set(node.parent_id, [node]);
  }
  const ends = endsOf(nodes, children);
  const top = nodes.find((node) => node.node_id === root);
  const waiting = placed(top ? [top] : (children.get(null) ?? []), ends, 0, 0, 0).reverse();
  const boxes: Box[] = [];
  for (let box = waiting.pop(); box; box = waiting.pop()) {
    boxes.push(box);
    const below = children.get(box.row.node_id) ?? [];
    waiting.push(...placed(below, ends, box.end, box.top, box.depth + 1).reverse());
  }
  return {
    boxes,
    tokens: boxes.reduce((most, box) => Math.max(most, box.end), 0),
    rows: boxes.reduce((most, box) => Math.max(most, box.bottom), 0),
  };
}

/** How many ends each node leads to; itself, where it leads nowhere. */
function endsOf(
  nodes: readonly PrefixRow[],
  children: ReadonlyMap<number | null, PrefixRow[]>,
): Map<number, number> {
  const ends = new Map<number, number>();
  for (const node of [...inOrder(nodes, children)].reverse()) {
    const below = children.get(node.node_id) ?? [];
    const sum = below.reduce((all, one) => all + (ends.get(one.node_id) ?? 1), 0);
    ends.set(node.node_id, Math.max(1, sum));
  }
  return ends;
}

/** Parents before their children. */
function inOrder(
  nodes: readonly PrefixRow[],
  children: ReadonlyMap<number | null, PrefixRow[]>,
): PrefixRow[] {
  const found = nodes.filter((node) => node.parent_id === null);
  for (let at = 0; at < found.length; at++) {
    found.push(...(children.get(found[at]?.node_id ?? null) ?? []));
  }
  return found;
}

function placed(
  siblings: readonly PrefixRow[],
  ends: ReadonlyMap<number, number>,
  start: number,
  firstRow: number,
  depth: number,
): Box[] {
  let top = firstRow;
  const largestFirst = [...siblings].sort(
    (a, b) => b.all_tokens - a.all_tokens || a.node_id - b.node_id,
  );
  return largestFirst.map((row) => {
    const box = {
      row,
      start,
      end: start + row.tokens,
      top,
      bottom: top + (ends.get(row.node_id) ?? 1),
      depth,
    };
    top = box.bottom;
    return box;
  });
}

/** A box as it is seen, in pixels. */
export interface Shape {
  readonly box: Box;
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

/**
 * What is seen of a drawing at a size in pixels, nothing of it smaller than one. Where boxes are, the
 * first takes the pixels: of a parent's parts that is the one with most behind it. Others are seen
 * where they go further. So there are never more shapes than pixels, however large the tree is.
 */
export function visible(drawing: Drawing, width: number, height: number): Shape[] {
  const across = width / Math.max(1, drawing.tokens);
  const down = height / Math.max(1, drawing.rows);
  // Up to where rows of pixels are taken by flat boxes, and rows of the drawing by narrow ones.
  const [flat, narrow] = [new Map<number, number>(), new Map<number, number>()];
  const shapes: Shape[] = [];
  for (const box of drawing.boxes) {
    const [start, end] = [box.start * across, box.end * across];
    const [top, bottom] = [box.top * down, box.bottom * down];
    const isFlat = bottom - top < 1;
    if (end - start >= 1 && !isFlat) {
      shapes.push({ box, left: start, top, width: end - start, height: bottom - top });
      continue;
    }
    const [taken, row] = isFlat ? [flat, Math.floor(top)] : [narrow, box.top];
    const left = Math.max(Math.floor(start), taken.get(row) ?? 0);
    const right = Math.ceil(end);
    if (left >= right) continue;
    taken.set(row, right);
    const [from, high] = isFlat ? [row, 1] : [top, bottom - top];
    shapes.push({ box, left, top: from, width: right - left, height: high });
  }
  return shapes;
}

/** What is seen at a place, if anything is. */
export const shapeAt = (shapes: readonly Shape[], x: number, y: number): Shape | null =>
  shapes.find(
    ({ left, top, width, height }) => left <= x && x < left + width && top <= y && y < top + height,
  ) ?? null;

/** A node and all above it, from the trunk on. */
export function pathOf(nodes: readonly PrefixRow[], id: number | null): PrefixRow[] {
  const known = new Map(nodes.map((node) => [node.node_id, node]));
  const path: PrefixRow[] = [];
  let at = id === null ? undefined : known.get(id);
  while (at) {
    path.unshift(at);
    at = at.parent_id === null ? undefined : known.get(at.parent_id);
  }
  return path;
}
