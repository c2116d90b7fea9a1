import { describe, expect, it } from "vitest";

import type { ConversationView, Receipt } from "../generated/events";
import {
  byDay,
  duration,
  missWords,
  receiptLine,
  shares,
  speed,
  timesLine,
  titleOf,
} from "./format";

const RECEIPT: Receipt = {
  prompt_tokens: 449,
  cached_tokens: 412,
  restored_tokens: 0,
  computed_tokens: 37,
  output_tokens: 21,
  cached_by_source: { template: 12, persona: 59, document: 0, session: 341 },
  miss_reason: null,
  differs_at: null,
  queue_s: 0.0004,
  prefill_s: 0.041,
  first_token_s: 0.048,
  total_s: 2.048,
  model_fingerprint: "",
  template_fingerprint: "",
  boot_id: "",
};

describe("a receipt", () => {
  it("says in words what a turn cost", () => {
    expect(receiptLine(RECEIPT)).toBe("37 new, 412 from cache, first token 48 ms");
    expect(timesLine(RECEIPT)).toBe(
      "Waited under 1 ms, read what was new in 41 ms, wrote 21 tokens in 2.0 s, 10 a second.",
    );
  });

  it("leaves the first token out where there was none", () => {
    const receipt = { ...RECEIPT, first_token_s: null, computed_tokens: 8412 };

    expect(receiptLine(receipt)).toBe("8,412 new, 412 from cache");
    expect(speed(receipt)).toBeNull();
  });

  it("cuts the prompt into shares without a hole", () => {
    const parts = shares(RECEIPT);

    expect(parts.map(({ kind }) => kind)).toEqual(["template", "persona", "session", "computed"]);
    expect(parts[0]?.start).toBe(0);
    expect(parts.at(-1)?.end).toBe(1);
    parts.slice(1).forEach((part, i) => expect(part.start).toBe(parts[i]?.end));
  });

  it("tells what a first turn found of its owner's others from what a later one found of its own", () => {
    const named = (miss_reason: Receipt["miss_reason"]) =>
      shares({ ...RECEIPT, miss_reason }).find(({ kind }) => kind === "session")?.name;

    expect(named("first_turn")).toBe("from your other conversations");
    expect(named(null)).toBe("from this conversation");
  });

  it("explains a miss", () => {
    expect(missWords("engine_restart")).toContain("engine was started anew");
  });
});

describe("words for figures", () => {
  it.each([
    [0.0002, "under 1 ms"],
    [0.0482, "48 ms"],
    [0.9996, "1.0 s"],
    [1.26, "1.3 s"],
    [59.96, "1 min 0 s"],
    [125, "2 min 5 s"],
  ])("%f s is %s", (seconds, words) => {
    expect(duration(seconds)).toBe(words);
  });
});

describe("the list", () => {
  const item = (id: string, updated: Date): ConversationView => ({
    id,
    title: "",
    persona_id: null,
    persona_version: null,
    document_ids: [],
    continues_id: null,
    leaf_id: null,
    archived: false,
    pinned: false,
    kept_warm: false,
    created_at: 0,
    updated_at: updated.getTime() / 1000,
  });

  it("is cut by day, the newest first, whatever order it came in", () => {
    const now = new Date(2026, 5, 15, 9, 0);
    const items = [
      item("older", new Date(2026, 4, 1)),
      item("yesterday", new Date(2026, 5, 14, 23, 59)),
      item("today", new Date(2026, 5, 15, 0, 1)),
      item("week", new Date(2026, 5, 10)),
      item("now", now),
    ];

    const groups = byDay(items, now).map(({ label, items: found }) => [
      label,
      ...found.map(({ id }) => id),
    ]);

    expect(groups).toEqual([
      ["Today", "now", "today"],
      ["Yesterday", "yesterday"],
      ["Past week", "week"],
      ["Older", "older"],
    ]);
  });

  it("has a name for a conversation without one", () => {
    expect(titleOf(null)).toBe("New conversation");
    expect(titleOf({ ...item("a", new Date()), title: "  " })).toBe("New conversation");
  });
});
