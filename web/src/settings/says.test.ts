import { describe, expect, it } from "vitest";

import { addresses, isNarrower, textOf } from "./says";

const SAID = {
  name: "Mate",
  text: "You are the mate of a ship.",
  examples: [
    { role: "user", text: "How are you?" },
    { role: "assistant", text: "Shipshape." },
    { role: "user", text: "And the crew?" },
    { role: "assistant", text: "Asleep." },
  ],
  document_ids: ["document_1"],
};

describe("an old version", () => {
  it("of a persona is told with its examples in pairs", () => {
    expect(textOf("personas", SAID)).toEqual({
      name: "Mate",
      instructions: "You are the mate of a ship.",
      examples: [
        { user: "How are you?", assistant: "Shipshape." },
        { user: "And the crew?", assistant: "Asleep." },
      ],
      document_ids: ["document_1"],
    });
  });

  it("of a document is its title and its text", () => {
    expect(textOf("documents", { ...SAID, examples: [], document_ids: [] })).toEqual({
      title: "Mate",
      text: "You are the mate of a ship.",
    });
  });
});

describe("readers", () => {
  it("are addresses, one a line or one after the other", () => {
    expect(addresses(" ann@example.org\nbob@example.org, eve@example.org; ")).toEqual([
      "ann@example.org",
      "bob@example.org",
      "eve@example.org",
    ]);
    expect(addresses("  ")).toEqual([]);
  });

  it.each([
    ["owner", "owner", false],
    ["owner", "listed", true],
    ["owner", "everybody", true],
    ["listed", "listed", false],
    ["listed", "everybody", true],
    ["everybody", "everybody", false],
  ] as const)("of a document for %s are fewer than a persona's for %s: %s", (one, other, isSo) => {
    expect(isNarrower({ visibility: one }, { visibility: other })).toBe(isSo);
  });
});
