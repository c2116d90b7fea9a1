import fc from "fast-check";
import { describe, expect, it } from "vitest";

import { dom, html, shown } from "./drawn";
import { Markdown } from "./markdown";

const DOCUMENT = [
  "Intro with **bold** and `code`.",
  "# Title\n\nSetext\n---\n",
  "- one\n- two\n\n  more of two\n- three\n#four",
  "1. first\n   ```py\n   x = 1\n   ```\n2. second",
  "```python\ndef f():\n\n    return '```'\n```",
  "| a | b |\n|---|---|\n| 1 | 2 |",
  "> quote\nlazy\n\n> again",
  "    indented code\n\n    goes on",
  "***\n\nText\nover lines  \nwith a break",
  "<div>\nraw\n\n</div>",
];

const SYNTAX =
  "\n,\n\n,- ,-,> ,1. ,#,# ,```,    ,  ,a,b c,|,|-|,---,=,***,<div>,<!--,-->,[x]: y,\\,*".split(
    ",",
  );

const ITEMS = ["- a\n", "- b\n", " - c\n", "- **d\n", "- e\n\n", "- [ ] f\n", "-\n"];
const ROWS = ["| 1 | 2 |\n", "| **3 | `4` |\n", "| 5\n", "6 | 7 | 8\n", "\n", "- x\n", "| - | ---"];
const CODE = [
  "```py\n",
  "```\n",
  "~~~\n",
  "  ````\n",
  "``\n",
  "x = 1\n",
  "      y\n",
  "\n",
  "~~~~",
  "a",
];
const LINES = [
  ...ITEMS,
  "  - nested\n",
  "   - far\n",
  "1. x\n",
  "2. y\n\n",
  "3) z\n",
  "* star\n",
  "- - -\n",
  "lazy\n",
  "  inside\n",
  "\n",
  "- ```\n",
  "  ```\n",
  "> quote\n",
  "===\n",
  "# head\n",
  ...ROWS,
];

describe("a growing answer", () => {
  const documents = fc
    .array(fc.constantFrom(...DOCUMENT), { minLength: 1, maxLength: 6 })
    .map((parts) => parts.join("\n\n"));
  const mixtures = fc
    .array(fc.constantFrom(...SYNTAX), { minLength: 3, maxLength: 12 })
    .map((parts) => parts.join(""));
  const lines = fc
    .array(fc.constantFrom(...LINES), { minLength: 4, maxLength: 14 })
    .map((parts) => parts.join(""));
  const lists = fc
    .array(
      fc.oneof({ arbitrary: fc.constantFrom(...ITEMS), weight: 4 }, fc.constantFrom(...LINES)),
      {
        minLength: 6,
        maxLength: 16,
      },
    )
    .map((parts) => parts.join(""));
  const tables = fc
    .array(fc.constantFrom(...ROWS), { minLength: 4, maxLength: 12 })
    .map((parts) => `| a | b |\n|---|:-:|\n${parts.join("")}`);
  const codes = fc
    .array(fc.constantFrom(...CODE), { minLength: 4, maxLength: 16 })
    .map((parts) => `Before.\n${parts.join("")}`);
  const texts = fc.oneof(
    documents,
    { arbitrary: mixtures, weight: 6 },
    { arbitrary: lines, weight: 3 },
    { arbitrary: lists, weight: 3 },
    tables,
    { arbitrary: codes, weight: 2 },
  );

  it("never changes a block that is closed", () => {
    fc.assert(
      fc.property(texts, fc.infiniteStream(fc.integer({ min: 1, max: 7 })), (text, steps) => {
        const markdown = new Markdown();
        const closed: string[] = [];
        for (let end = 0; end < text.length; end += steps.next().value as number) {
          const blocks = markdown.update(text.slice(0, end), false);
          const all = blocks.map(shown);
          closed.forEach((before, i) => expect(all[i]).toBe(before));
          blocks.slice(closed.length).forEach((block) => {
            if (block.closed) closed.push(shown(block));
          });
        }
      }),
      { numRuns: 200 },
    );
  });

  it("looks at every moment as if it were read at once", () => {
    fc.assert(
      fc.property(texts, fc.infiniteStream(fc.integer({ min: 1, max: 7 })), (text, steps) => {
        const markdown = new Markdown();
        const now = (done: boolean, end?: number) =>
          markdown.update(text.slice(0, end), done).map(shown).join("");
        for (let end = 0; end < text.length; end += steps.next().value as number) {
          expect(now(false, end)).toBe(html(text.slice(0, end), false));
        }
        expect(now(true)).toBe(html(text));
      }),
      { numRuns: 300 },
    );
  });

  it("forgets a link whose definition goes on and is none", () => {
    const text = "See [x].\n\n[x]: y1. a";
    const markdown = new Markdown();
    for (let end = 0; end < text.length; end += 1) markdown.update(text.slice(0, end), false);

    const now = markdown.update(text, true).map(shown);

    expect(now.join("")).toBe(html(text));
  });

  it.each([
    "See [x].\n\n[x]: https://example.org",
    "See [x].\n\n- [x]: https://example.org",
    "See [x].\n\n> [x]: https://example.org",
    "See [x].\n\n1. one\n\n   [x]: https://example.org\n\nMore.\n\nMore.\n\nMore.\n\nMore.",
  ])("links what is defined further down: %j", (text) => {
    const markdown = new Markdown();
    for (let end = 0; end < text.length; end += 1) markdown.update(text.slice(0, end), false);

    const [first = ""] = markdown.update(text, true).map(shown);

    expect(first).toContain('href="https://example.org"');
  });

  it("renders only what changed", () => {
    const markdown = new Markdown();
    const before = markdown.update("One.\n\nTwo.\n\nThree.\n\nFo", false);

    const after = markdown.update("One.\n\nTwo.\n\nThree.\n\nFour", false);

    expect(after.slice(0, 3)).toEqual(before.slice(0, 3));
    after.slice(0, 3).forEach((block, i) => expect(block).toBe(before[i]));
    expect(after.map(shown)[3]).toContain("Four");
  });

  it.each([
    ["a list", "", (i: number) => `- item **${i}**\n`],
    ["a loose list", "", (i: number) => `${i + 1}. item **${i}**\n\n   and more\n\n`],
    ["a table", "| a | b |\n|---|---|\n", (i: number) => `| \`${i}\` | cell |\n`],
    ["code", "```py\n", (i: number) => `x${i} = 1  # a line of it\n`],
    ["code that is indented", "  ~~~~ py\n", (i: number) => `    x${i} = 1\n\n~~~\n`],
  ])("takes as much work in the end of %s as in its beginning", (_, head, piece) => {
    const markdown = new Markdown();
    const costs: number[] = [];
    let text = "Before.\n\n" + head;
    for (let i = 0; i < 400; i += 1) {
      const before = markdown.work.read + markdown.work.rendered;
      for (const part of [piece(i).slice(0, 5), piece(i).slice(5)]) {
        text += part;
        markdown.update(text, false);
      }
      costs.push(markdown.work.read + markdown.work.rendered - before);
    }
    const blocks = markdown.update(`${text}\nBehind.`, false);

    const early = Math.max(...costs.slice(10, 20));
    expect(Math.max(...costs.slice(20))).toBeLessThan(1.5 * early);
    expect(blocks.map(shown).join("")).toBe(html(`${text}\nBehind.`, false));
  });

  it.each([
    ["paragraph", "", (i: number) => `word ${i} and **more** of the same, again and again `],
    ["item", "- top\n\n  ```py\n", (i: number) => `  x${i} = 1  # a line of the code in it\n`],
  ])("takes as much work in the end of an endless %s as in its beginning", (_, head, piece) => {
    const markdown = new Markdown();
    const costs: number[] = [];
    let text = head;
    for (let i = 0; costs.length < 4; i += 1) {
      text += piece(i);
      markdown.update(text, false);
      if (text.length >= 4_000 * (costs.length + 1))
        costs.push(markdown.work.read + markdown.work.rendered);
    }
    const [first = 0, second = 0, ...others] = costs.map((cost, i) => cost - (costs[i - 1] ?? 0));

    expect(first).toBeLessThan(1.5 * second);
    expect(Math.max(...others)).toBeLessThan(1.5 * second);
    expect(markdown.update(text, true).map(shown).join("")).toBe(html(text));
  });

  it("draws no piece again that did not change", () => {
    const markdown = new Markdown();
    const items = Array.from({ length: 50 }, (_, i) => `- item ${i}\n`).join("");
    const piecesOf = (text: string, done: boolean) => {
      const [only] = markdown.update(text, done);
      return only?.kind === "list" ? only.pieces : [];
    };
    const before = piecesOf(items, false);
    const after = piecesOf(`${items}- another`, false);
    const end = piecesOf(`${items}- another`, true);

    expect(after).toHaveLength(51);
    before.forEach((piece, i) => expect(after[i]).toBe(piece));
    after.forEach((piece, i) => expect(end[i]).toBe(piece));
  });

  it("closes what is half open for the moment", () => {
    expect(dom("some **bold", false).querySelector("strong")?.textContent).toBe("bold");
    expect(dom("see [the docs](https://exa", false).textContent).toBe("see the docs");
    expect(dom("see [the docs](https://exa", false).querySelector("a")).toBeNull();
    expect(dom("```js\nlet a", false).querySelector("code")?.textContent).toBe("let a\n");
  });

  it("starts anew when the text is replaced", () => {
    const markdown = new Markdown();
    markdown.update("Some text that was read", false);

    expect(markdown.update("Other", true).map(shown)).toEqual(['<p dir="auto">Other</p>']);
  });

  it("finds links that are defined further down, at the end", () => {
    expect(dom("see [x]\n\n[x]: https://a.example").querySelector("a")?.textContent).toBe("x");
  });
});

describe("the direction", () => {
  it.each([
    ["- مرحبا\n- again", "ul", "rtl"],
    ["1. [x] שלום\n\n   two", "ol", "rtl"],
    ["- [x] שלום", "ul", "rtl"],
    ["1. שלום\n\n2. two", "li", "rtl"],
    ["> مرحبا", "blockquote", "rtl"],
    ["| العربية | b |\n| --- | --- |\n| c | d |", ".table", "rtl"],
    ["- first\n- مرحبا", "ul", "ltr"],
    ["> first مرحبا", "blockquote", "ltr"],
  ])("of %j is its first letter's", (text, place, direction) => {
    expect(dom(text).querySelector(place)?.getAttribute("dir")).toBe(direction);
  });

  it("leaves an ordered list its first number", () => {
    expect(dom("3. c\n4. d").querySelector("ol")?.getAttribute("start")).toBe("3");
  });
});
