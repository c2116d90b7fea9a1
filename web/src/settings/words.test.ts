import { describe, expect, it } from "vitest";

import { away, byDay, device, tokensOf } from "./words";

const NOW = new Date("2026-12-01T12:00:00Z");
const at = (seconds: number): number => NOW.getTime() / 1000 + seconds;

describe("times", () => {
  it.each([
    [0, "this minute"],
    [-30, "this minute"],
    [-120, "2 minutes ago"],
    [3 * 3600, "in 3 hours"],
    [-86_400, "yesterday"],
    [40 * 86_400, "Jan 10, 2027"],
  ])("%d seconds away is told as a person would", (seconds, words) => {
    expect(away(at(seconds), NOW)).toBe(words);
  });
});

describe("sizes", () => {
  it("of what no model has read are not made up", () => {
    expect(tokensOf({ tokens: null })).toBe("not counted yet");
    expect(tokensOf({ tokens: 1 })).toBe("1 token");
    expect(tokensOf({ tokens: 1234 })).toBe("1,234 tokens");
  });
});

describe("days", () => {
  it("are summed over models and keys", () => {
    const one = { day: "2026-12-01", requests: 1, computed_tokens: 2, cached_tokens: 3 };

    const days = byDay([
      { ...one, output_tokens: 4 },
      { ...one, output_tokens: 5 },
      { ...one, day: "2026-11-30", output_tokens: 6 },
    ]);

    expect(days).toEqual([
      ["2026-12-01", { turns: 2, anew: 4, warm: 6, written: 9 }],
      ["2026-11-30", { turns: 1, anew: 2, warm: 3, written: 6 }],
    ]);
  });
});

describe("a browser", () => {
  it.each([
    ["Mozilla/5.0 (X11; Linux x86_64; rv:150.0) Gecko/20100101 Firefox/150.0", "Firefox on Linux"],
    ["Mozilla/5.0 (Windows NT 10.0) Chrome/150.0 Safari/537.36 Edg/150.0", "Edge on Windows"],
    ["Mozilla/5.0 (iPhone; CPU iPhone OS 19 like Mac OS X) Safari/604.1", "Safari on iOS"],
    ["curl/8.5", "A browser on an unknown system"],
  ])("is told by what it says of itself: %s", (agent, words) => {
    expect(device(agent)).toBe(words);
  });
});
