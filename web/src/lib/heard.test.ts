import { describe, expect, it } from "vitest";

import { endWords } from "./heard";
import type { MessageView } from "./reduce";

const answered = (status: string, incomplete_reason: string | null = null): MessageView[] => [
  { response: { id: "resp_1", status, incomplete_reason } } as unknown as MessageView,
];

describe("what is heard at the end of an answer", () => {
  it.each([
    ["completed", null, "The answer is complete."],
    ["cancelled", null, "The answer was stopped."],
    ["failed", null, "The answer failed."],
    ["incomplete", "max_output_tokens", "The answer was cut off."],
    ["incomplete", "interrupted", "The answer was interrupted."],
  ])("is how it ended: %s, %s", (status, reason, words) => {
    expect(endWords(answered(status, reason), "resp_1")).toBe(words);
  });

  it("is nothing where another conversation is looked at meanwhile", () => {
    expect(endWords(answered("completed"), "resp_2")).toBe("");
  });
});
