// An answer as blocks of safe HTML. Blocks that are closed keep their HTML, only the last block is
// rendered again while it grows, and half-open syntax in it is closed for the moment.
//
// Raw HTML in an answer is text. Nothing is loaded from elsewhere: images are links. The sanitiser
// comes last, on exactly the string that goes into the page.

import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import remend from "remend";
import { strings } from "../strings/chat";

export interface Block {
  readonly key: number;
  readonly html: SafeHtml;
  /** Nothing in it will change any more. */
  readonly closed: boolean;
}

interface Kept extends Block {
  readonly raw: string;
}

// The last line may still join the block before it ("#" after a paragraph is a heading, "#x" is that
// paragraph's text) and with it undo one more, so three blocks are read again; rendered again is
// only what changed. Three is measured: a quarter of a million mixtures of syntax, cut anywhere.
const OPEN_BLOCKS = 3;

const NO_LINKS = "{}";

/** The blocks of one answer, fed with its whole text again and again as it grows. */
export class Markdown {
  #text = "";
  #read = 0;
  #kept: Kept[] = [];
  #closed = 0;
  #links = NO_LINKS;
  #everLinked = false;

  update(text: string, done: boolean): readonly Block[] {
    const whole = text.replace(/\r\n?/g, "\n");
    if (!whole.startsWith(this.#text) || done) this.#reset(whole, done);
    this.#text = whole;

    const tokens = marked.lexer(whole.slice(this.#read));
    const links = JSON.stringify(tokens.links);
    // A link may be defined below what refers to it, also in a list or a quotation; and what looked
    // like a definition may turn out to be none.
    this.#everLinked ||= links !== NO_LINKS;
    if (done ? this.#everLinked : links !== this.#links)
      this.#kept = this.#kept.slice(0, this.#closed);
    this.#links = links;
    const blocks = grouped(tokens);
    const closing = done ? blocks.length : Math.max(0, blocks.length - OPEN_BLOCKS);
    const start = this.#closed;
    this.#kept = [
      ...this.#kept.slice(0, start),
      ...blocks.map((block, i) =>
        this.#block(start + i, block, i < closing, i === blocks.length - 1),
      ),
    ];
    this.#closed += closing;
    this.#read += blocks.slice(0, closing).reduce((sum, { raw }) => sum + raw.length, 0);
    return this.#kept;
  }

  // At the end all is read once more as a whole, and HTML is kept where it is the same.
  #reset(whole: string, done: boolean): void {
    if (!done || !whole.startsWith(this.#text)) this.#kept = [];
    this.#read = 0;
    this.#closed = 0;
  }

  #block(key: number, { raw, token }: Grouped, closed: boolean, last: boolean): Kept {
    const before = this.#kept[key];
    const growing = last && !closed;
    const source = growing ? remend(raw, REMEND) : raw;
    if (before?.raw === source) return before.closed === closed ? before : { ...before, closed };
    const html = growing ? marked.parse(source, { async: false }) : marked.parser([token]);
    return { key, raw: source, html: sanitised(html), closed };
  }
}

interface Grouped {
  readonly raw: string;
  readonly token: Token;
}

/** Each block with the blank lines that follow it (and, at the start, precede it). */
function grouped(tokens: readonly Token[]): Grouped[] {
  const found: Grouped[] = [];
  let before = "";
  for (const token of tokens) {
    const last = found.at(-1);
    if (token.type !== "space") {
      found.push({ raw: before + token.raw, token });
      before = "";
    } else if (last) {
      found[found.length - 1] = { ...last, raw: last.raw + token.raw };
    } else {
      before = token.raw;
    }
  }
  return found;
}

// ---------------------------------------------------------------- Markdown -> HTML

const REMEND = { linkMode: "text-only", images: false, katex: false, htmlTags: false } as const;

const ESCAPES: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};
const escaped = (text: string): string => text.replace(/[&<>"']/g, (c) => ESCAPES[c] ?? c);

const SAFE_ADDRESS = /^(?:https?:\/\/|mailto:)/i;

const marked = new Marked({ gfm: true, breaks: false });
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
      return `<blockquote dir="${direction(raw)}">${this.parser.parse(tokens)}</blockquote>`;
    },
    list({ raw, ordered, start, items }) {
      const tag = ordered ? "ol" : "ul";
      const from = ordered && start !== 1 ? ` start="${start}"` : "";
      const inner = items.map((item) => this.listitem(item)).join("");
      return `<${tag}${from} dir="${direction(raw)}">\n${inner}</${tag}>\n`;
    },
    listitem({ raw, tokens }) {
      return `<li dir="${direction(raw)}">${this.parser.parse(tokens)}</li>`;
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
      return codeBlock(text, /^[\w+#.-]*/.exec(lang ?? "")?.[0] ?? "");
    },
    table(token: Tokens.Table) {
      const head = row(token.header, "th", (cell) => this.parser.parseInline(cell.tokens));
      const rows = token.rows.map((cells) =>
        row(cells, "td", (cell) => this.parser.parseInline(cell.tokens)),
      );
      return (
        `<div class="table" dir="${direction(token.raw)}" tabindex="0" role="region" aria-label="${escaped(strings.table)}"><table>` +
        `<thead>${head}</thead><tbody>${rows.join("")}</tbody></table></div>`
      );
    },
  },
});

const RIGHT_TO_LEFT =
  /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** By the first letter. The browser's own "auto" passes over what stands in a child with a direction. */
function direction(source: string): "ltr" | "rtl" {
  const letter = /\p{L}/u.exec(source.replace(/\[[ x]\]/gi, ""))?.[0] ?? "";
  return RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}

function anchor(href: string, inner: string): string {
  return SAFE_ADDRESS.test(href) ? `<a href="${escaped(href)}">${inner}</a>` : inner;
}

function codeBlock(text: string, lang: string): string {
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
