import { describe, expect, it } from "vitest";

import type { MessageView, Receipt, Warmth } from "../generated/events";
import { costWords, isNearlyFull, loadOf, share, surelyTooLong } from "./load";

const said = (prompt_tokens: number, output_tokens: number): MessageView =>
  ({ response: { receipt: { prompt_tokens, output_tokens } as Receipt } }) as MessageView;
const question = { response: null } as MessageView;

describe("how full the context is", () => {
  it("is told by the newest answer that has a receipt", () => {
    const messages = [question, said(40, 60), question, said(120, 80), question];

    expect(loadOf(messages, 1000)).toEqual({ tokens: 200, limit: 1000, isRough: false });
  });

  it("is guessed of what came from elsewhere, until an answer tells", () => {
    const brought = (role: string, text: string): MessageView =>
      ({ role, text, response: null }) as MessageView;
    const messages = [brought("user", "a".repeat(400)), brought("assistant", "b".repeat(200))];

    expect(loadOf(messages, 1000)).toEqual({ tokens: 150, limit: 1000, isRough: true });
    expect(loadOf(messages.slice(0, 1), 1000)).toBeNull();
    expect(loadOf([...messages, said(120, 80)], 1000)?.isRough).toBe(false);
  });

  it("is not told where nothing was answered, or the limit is not known", () => {
    expect(loadOf([question], 1000)).toBeNull();
    expect(loadOf([said(1, 1)], null)).toBeNull();
  });

  it("is never more than all of it, and nearly full before that", () => {
    expect(share({ tokens: 1200, limit: 1000, isRough: false })).toBe(1);
    expect(isNearlyFull({ tokens: 849, limit: 1000, isRough: false })).toBe(false);
    expect(isNearlyFull({ tokens: 850, limit: 1000, isRough: false })).toBe(true);
  });
});

describe("what the next turn costs", () => {
  const warmth = (device_tokens: number): Warmth => ({
    conversation_id: "conv_1",
    state: "warm",
    device_tokens,
    host_tokens: 0,
    disk_tokens: 0,
  });

  it("is only what is new where all of it is ready", () => {
    expect(costWords({ tokens: 200, limit: 1000, isRough: false }, warmth(199))).toContain(
      "only what is new",
    );
  });

  it("is told in tokens where some of it is missing", () => {
    expect(costWords({ tokens: 200, limit: 1000, isRough: false }, warmth(120))).toContain(
      "other 79",
    );
  });
});

describe("a text", () => {
  it("is called too long only where there is no doubt", () => {
    expect(surelyTooLong("a".repeat(5000), null, 1000)).toBe(false);
    expect(surelyTooLong("a".repeat(6100), null, 1000)).toBe(true);
    expect(
      surelyTooLong("a".repeat(3100), { tokens: 500, limit: 1000, isRough: false }, 1000),
    ).toBe(true);
    expect(surelyTooLong("a".repeat(9000), null, null)).toBe(false);
  });
});
