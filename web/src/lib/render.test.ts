import fc from "fast-check";
import { describe, expect, it } from "vitest";

import { dom } from "./drawn";
import { highlighted } from "./highlight";
import { sanitised } from "./render";

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
