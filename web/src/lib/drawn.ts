// An answer's blocks as one string of HTML, as `Prose` puts them into the page. For tests.

import { type Block, Markdown, type Row } from "./markdown";
import { codeBlock } from "./render";

/** As `Prose` puts it into the page. */
export function shown(block: Block): string {
  if (block.kind === "html") return String(block.html);
  if (block.kind === "list") {
    const tag = block.ordered ? "ol" : "ul";
    const start = block.start === undefined ? "" : ` start="${block.start}"`;
    const items = block.pieces.map(({ dir, html }) => `<li dir="${dir}">${html}</li>`);
    return `<${tag}${start} dir="${block.dir}">${items.join("")}</${tag}>`;
  }
  if (block.kind === "code")
    return codeBlock(block.pieces.map(({ text }) => text).join("\n"), block.language);
  const row = ({ cells }: Row, tag: string): string =>
    `<tr>${cells.map((one, i) => `<${tag} class="align-${block.sides[i]}">${one}</${tag}>`).join("")}</tr>`;
  return (
    `<div class="table" dir="${block.dir}" aria-label="Table"><table><thead>${row(block.head, "th")}</thead>` +
    `<tbody>${block.pieces.map((one) => row(one, "td")).join("")}</tbody></table></div>`
  );
}

export const html = (text: string, done = true): string =>
  new Markdown().update(text, done).map(shown).join("");

export function dom(text: string, done = true): HTMLElement {
  const root = document.createElement("div");
  root.innerHTML = html(text, done);
  return root;
}
