// Markdown to HTML that may go into the page.
//
// Raw HTML in an answer is text. Nothing is loaded from elsewhere: images are links. The sanitiser
// comes last, on exactly the string that goes into the page.

import DOMPurify from "dompurify";
import { Marked, Parser, type Tokens } from "marked";
import { strings } from "../strings/chat";

export const REMEND = {
  linkMode: "text-only",
  images: false,
  katex: false,
  htmlTags: false,
} as const;

const ESCAPES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};
const escaped = (text: string): string => text.replace(/[&<>"']/g, (c) => ESCAPES[c] ?? c);

const SAFE_ADDRESS = /^(?:https?:\/\/|mailto:)/i;

export const marked = new Marked({ gfm: true, breaks: false });
marked.use({
  renderer: {
    html({ text }) {
      return /^<br\s*\/?>$/i.test(text) ? "<br>" : escaped(text);
    },
    paragraph({ tokens }) {
      return `<p dir="auto">${this.parser.parseInline(tokens)}</p>`;
    },
    // Each message is a second-level heading of the page, so an answer's own begin at the third.
    heading({ tokens, depth }) {
      const level = Math.min(Math.max(depth, 2) + 1, 6);
      const inner = this.parser.parseInline(tokens);
      return `<h${level} dir="auto" class="level-${depth}">${inner}</h${level}>`;
    },
    blockquote({ raw, tokens }) {
      return `<blockquote dir="${direction([{ raw }])}">${this.parser.parse(tokens)}</blockquote>`;
    },
    list({ raw, ordered, start, items }) {
      const tag = ordered ? "ol" : "ul";
      const from = ordered && start !== 1 ? ` start="${start}"` : "";
      const inner = items.map((item) => this.listitem(item)).join("");
      return `<${tag}${from} dir="${direction([{ raw }])}">\n${inner}</${tag}>\n`;
    },
    listitem({ raw, tokens }) {
      return `<li dir="${direction([{ raw }])}">${this.parser.parse(tokens)}</li>`;
    },
    checkbox({ checked }) {
      return checked ? "☑ " : "☐ ";
    },
    link({ href, tokens }) {
      return anchor(href, this.parser.parseInline(tokens));
    },
    image({ href, text }) {
      return anchor(href, escaped(strings.image(text || href)));
    },
    code({ text, lang }) {
      return codeBlock(text, languageOf(lang));
    },
    table(token: Tokens.Table) {
      const head = row(token.header, "th", (cell) => this.parser.parseInline(cell.tokens));
      const rows = token.rows.map((cells) =>
        row(cells, "td", (cell) => this.parser.parseInline(cell.tokens)),
      );
      return (
        `<div class="table" dir="${direction([token])}" tabindex="0" role="region" aria-label="${escaped(strings.table)}"><table>` +
        `<thead>${head}</thead><tbody>${rows.join("")}</tbody></table></div>`
      );
    },
  },
});

const RIGHT_TO_LEFT =
  /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

export type Direction = "ltr" | "rtl";

/** By the first letter. The browser's own "auto" passes over what stands in a child with a direction. */
export function direction(sources: Iterable<{ readonly raw: string }>): Direction {
  for (const { raw } of sources) {
    const letter = /\p{L}/u.exec(raw.replace(/\[[ x]\]/gi, ""))?.[0];
    if (letter !== undefined) return RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
  }
  return "ltr";
}

/** One row of a table, cell by cell. */
export function cellsOf(row: readonly Tokens.TableCell[]): SafeHtml[] {
  return row.map(({ tokens }) => sanitised(Parser.parseInline(tokens, marked.defaults)));
}

function anchor(href: string, inner: string): string {
  return SAFE_ADDRESS.test(href) ? `<a href="${escaped(href)}">${inner}</a>` : inner;
}

export const languageOf = (info: string | undefined): string =>
  /^[\w+#.-]*/.exec(info ?? "")?.[0] ?? "";

export function codeBlock(text: string, lang: string): string {
  return (
    `<div class="code" dir="ltr"><div class="code-bar"><span>${escaped(lang || "text")}</span>` +
    `<button type="button" class="copy">${escaped(strings.copy)}</button></div>` +
    `<pre tabindex="0"><code class="language-${escaped(lang)}">${escaped(text)}\n</code></pre></div>`
  );
}

function row(
  cells: readonly Tokens.TableCell[],
  tag: "th" | "td",
  inner: (cell: Tokens.TableCell) => string,
): string {
  const written = cells.map(
    (cell) => `<${tag} dir="auto" class="align-${cell.align ?? "start"}">${inner(cell)}</${tag}>`,
  );
  return `<tr>${written.join("")}</tr>`;
}

// ---------------------------------------------------------------- the last stop before the page

const TAGS =
  "p h3 h4 h5 h6 ul ol li blockquote pre code em strong del a br hr " +
  "table thead tbody tr th td div span button";
const PLAIN_ATTRIBUTES = "rel target class dir tabindex role aria-label type start".split(" ");

const purifier = DOMPurify(window);
purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A" || !node.hasAttribute("href")) return;
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("target", "_blank");
});

const RULES = {
  ALLOWED_TAGS: TAGS.split(" "),
  ALLOWED_ATTR: ["href", ...PLAIN_ATTRIBUTES],
  // Every other value would have to look like an address of ours.
  ADD_URI_SAFE_ATTR: PLAIN_ATTRIBUTES,
  ALLOWED_URI_REGEXP: SAFE_ADDRESS,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
};

/** What the page takes as HTML; where the browser knows no trusted types, a string. */
export type SafeHtml = ReturnType<typeof sanitised>;

export function sanitised(html: string) {
  return purifier.sanitize(html, { ...RULES, RETURN_TRUSTED_TYPE: true });
}

/** The same as nodes, for whoever puts them into the page by hand. */
export function safeNodes(html: string): DocumentFragment {
  return purifier.sanitize(html, { ...RULES, RETURN_DOM_FRAGMENT: true });
}
