import fc from "fast-check";
import { describe, expect, it } from "vitest";

import { highlighted } from "./highlight";
import { Markdown, type SafeHtml, sanitised } from "./markdown";

const html = (text: string, done = true): string =>
  new Markdown()
    .update(text, done)
    .map((block) => block.html)
    .join("");

function dom(text: string, done = true): HTMLElement {
  const root = document.createElement("div");
  root.innerHTML = html(text, done);
  return root;
}

const ATTACKS = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg/onload=alert(1)>",
  "<svg><script>alert(1)</script></svg>",
  "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
  "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
  "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
  "<form action=https://evil.example><button>Sign in</button></form>",
  "<style>@import 'https://evil.example'</style>",
  "<base href=https://evil.example>",
  "<a href='javascript:alert(1)'>x</a>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](java\nscript:alert(1))",
  "[x](&#106;avascript:alert(1))",
  "[x](javascript&colon;alert(1))",
  "[x](vbscript:msgbox(1))",
  "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
  "[x](blob:https://evil.example/1)",
  "[x](//evil.example)",
  "[x](/api/logout)",
  '[x](https://a.example/" onmouseover="alert(1))',
  '![x](https://a.example/a.png" onerror="alert(1))',
  "![x](https://evil.example/?secret)",
  "![x](data:image/svg+xml,<svg onload=alert(1)>)",
  '<https://a.example/"onmouseover=alert(1)>',
  "<javascript:alert(1)>",
  "[x]\n\n[x]: javascript:alert(1)",
  '```"><img src=x onerror=alert(1)>\ncode\n```',
  "```html\n<img src=x onerror=alert(1)>\n```",
  "`<img src=x onerror=alert(1)>`",
  "# <img src=x onerror=alert(1)>",
  "| <img src=x onerror=alert(1)> |\n|-|\n| <script>alert(1)</script> |",
  "- [ ] <input onfocus=alert(1) autofocus>",
  '<a href="https://a.example" target="_top" style="position:fixed;inset:0">x</a>',
  '<div class="visually-hidden" id="page">x</div>',
];

const TAGS = new Set(
  (
    "P H3 H4 H5 H6 UL OL LI BLOCKQUOTE PRE CODE EM STRONG DEL A BR HR " +
    "TABLE THEAD TBODY TR TH TD DIV SPAN BUTTON"
  ).split(" "),
);

function expectHarmless(root: HTMLElement): void {
  for (const node of root.querySelectorAll("*")) {
    expect(TAGS).toContain(node.tagName);
    for (const { name, value } of node.attributes) {
      expect(name).not.toMatch(/^on|^style$|^src|^id$|^name$|^action$/);
      if (name === "href") expect(value).toMatch(/^(https?:\/\/|mailto:)/i);
    }
    if (node.tagName === "A" && node.hasAttribute("href")) {
      expect(node.getAttribute("rel")).toBe("noopener noreferrer nofollow");
      expect(node.getAttribute("target")).toBe("_blank");
    }
    if (node.tagName === "BUTTON") expect(node.className).toBe("copy");
  }
}

describe("hostile text", () => {
  it.each(ATTACKS)("does no harm: %s", (attack) => {
    expectHarmless(dom(attack));
    for (let end = 1; end < attack.length; end += 1)
      expectHarmless(dom(attack.slice(0, end), false));
  });

  it("does no harm in any mixture", () => {
    const piece = fc.oneof(
      fc.constantFrom(...ATTACKS),
      fc.constantFrom(
        "\n",
        "\n\n",
        "- ",
        "> ",
        "`",
        "```",
        "**",
        "[",
        "](",
        ")",
        "<",
        ">",
        "|",
        "    ",
      ),
      fc.string({ maxLength: 6 }),
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 8 }), fc.boolean(), (pieces, done) => {
        expectHarmless(dom(pieces.join(""), done));
      }),
      { numRuns: 200 },
    );
  });

  it("stays text where it is HTML", () => {
    expect(dom("<b>bold?</b>").textContent).toBe("<b>bold?</b>");
  });

  it("loads nothing: an image is a link", () => {
    const link = dom("![a cat](https://example.org/cat.png)").querySelector("a");

    expect(link?.textContent).toBe("Image: a cat");
    expect(link?.getAttribute("href")).toBe("https://example.org/cat.png");
  });

  it("does no harm as code with colours", () => {
    const root = document.createElement("div");
    root.replaceChildren(highlighted("<img src=x onerror=alert(1)>", "xml") ?? "");

    expectHarmless(root);
    expect(root.textContent).toBe("<img src=x onerror=alert(1)>");
    expect(highlighted("x", "no-such-language")).toBeNull();
  });

  it("keeps what our own renderer writes", () => {
    const whole = dom("# One\n\n- a\n\n```js\n1\n```\n\n| a |\n|--:|\n| b |\n");

    expect(whole.querySelector("h3")?.getAttribute("dir")).toBe("auto");
    expect(whole.querySelector("pre")?.getAttribute("tabindex")).toBe("0");
    expect(whole.querySelector("code")?.className).toBe("language-js");
    expect(whole.querySelector("td")?.className).toBe("align-right");
    expect(whole.querySelector(".table")?.getAttribute("aria-label")).toBe("Table");
    expect(sanitised("<p style='color:red' onclick='x'>a</p>")).toBe("<p>a</p>");
  });
});

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

describe("a growing answer", () => {
  const documents = fc
    .array(fc.constantFrom(...DOCUMENT), { minLength: 1, maxLength: 6 })
    .map((parts) => parts.join("\n\n"));
  const mixtures = fc
    .array(fc.constantFrom(...SYNTAX), { minLength: 3, maxLength: 12 })
    .map((parts) => parts.join(""));
  const texts = fc.oneof(documents, { arbitrary: mixtures, weight: 6 });

  it("never changes a block that is closed", () => {
    fc.assert(
      fc.property(texts, fc.infiniteStream(fc.integer({ min: 1, max: 7 })), (text, steps) => {
        const markdown = new Markdown();
        const closed: SafeHtml[] = [];
        for (let end = 0; end < text.length; end += steps.next().value as number) {
          const blocks = markdown.update(text.slice(0, end), false);
          closed.forEach((before, i) => expect(blocks[i]?.html).toBe(before));
          for (const block of blocks.slice(closed.length))
            if (block.closed) closed.push(block.html);
        }
      }),
      { numRuns: 200 },
    );
  });

  it("looks at every moment as if it were read at once", () => {
    fc.assert(
      fc.property(texts, fc.infiniteStream(fc.integer({ min: 1, max: 7 })), (text, steps) => {
        const markdown = new Markdown();
        const shown = (done: boolean, end?: number) =>
          markdown.update(text.slice(0, end), done).map((block) => block.html);
        for (let end = 0; end < text.length; end += steps.next().value as number) {
          expect(shown(false, end).join("")).toBe(html(text.slice(0, end), false));
        }
        expect(shown(true).join("")).toBe(html(text));
      }),
      { numRuns: 400 },
    );
  });

  it("forgets a link whose definition goes on and is none", () => {
    const text = "See [x].\n\n[x]: y1. a";
    const markdown = new Markdown();
    for (let end = 0; end < text.length; end += 1) markdown.update(text.slice(0, end), false);

    const shown = markdown.update(text, true).map((block) => block.html);

    expect(shown.join("")).toBe(html(text));
  });

  it.each([
    "See [x].\n\n[x]: https://example.org",
    "See [x].\n\n- [x]: https://example.org",
    "See [x].\n\n> [x]: https://example.org",
    "See [x].\n\n1. one\n\n   [x]: https://example.org\n\nMore.\n\nMore.\n\nMore.\n\nMore.",
  ])("links what is defined further down: %j", (text) => {
    const markdown = new Markdown();
    for (let end = 0; end < text.length; end += 1) markdown.update(text.slice(0, end), false);

    const [first] = markdown.update(text, true);

    expect(first?.html).toContain('href="https://example.org"');
  });

  it("renders only what changed", () => {
    const markdown = new Markdown();
    const before = markdown.update("One.\n\nTwo.\n\nThree.\n\nFo", false);

    const after = markdown.update("One.\n\nTwo.\n\nThree.\n\nFour", false);

    expect(after.slice(0, 3)).toEqual(before.slice(0, 3));
    after.slice(0, 3).forEach((block, i) => expect(block).toBe(before[i]));
    expect(after[3]?.html).toContain("Four");
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

    expect(markdown.update("Other", true).map((block) => block.html)).toEqual([
      '<p dir="auto">Other</p>',
    ]);
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
