// What charts share: the page's colours as a canvas wants them, and series on top of each other.

import { stacked } from "../lib/series";

const query = matchMedia("(prefers-color-scheme: dark)");

/** Whether the page is dark; charts are drawn anew when that changes. */
class Dark {
  matches = $state(query.matches);
}
export const dark = new Dark();
query.addEventListener("change", () => (dark.matches = query.matches));

/** A custom property as a plain colour: `light-dark()` is resolved by the element it stands on. */
export function colorOf(node: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  node.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** The whole first, so that each line's area is drawn over the one that it is a part of. */
export function stackedLines(
  lines: readonly { readonly values: readonly (number | null)[] }[],
): number[][] {
  return stacked(lines.map((line) => line.values.map((value) => value ?? 0))).reverse();
}
