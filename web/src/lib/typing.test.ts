import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { delayMs, EVERY_MS, PAUSE_MS, REST_MS, Typing } from "./typing";

describe("the wait behind a key", () => {
  it("is a pause, or what is left until the next draft is due", () => {
    expect(delayMs(0, 0)).toBe(PAUSE_MS);
    expect(delayMs(800, 0)).toBe(200);
    expect(delayMs(5000, 0)).toBe(0);
  });

  it("ends no later than a draft is due, and never before the key", () => {
    fc.assert(
      fc.property(fc.nat(10_000), fc.nat(10_000), (since, held) => {
        const wait = delayMs(since + held, since);
        expect(wait).toBeGreaterThanOrEqual(0);
        expect(wait).toBeLessThanOrEqual(PAUSE_MS);
        expect(held + wait).toBeLessThanOrEqual(Math.max(held, EVERY_MS));
      }),
    );
  });
});

describe("typing", () => {
  let drafts: string[];
  let states: boolean[];
  let typing: Typing;

  beforeEach(() => {
    vi.useFakeTimers();
    drafts = [];
    states = [];
    typing = new Typing({
      draft: (text) => drafts.push(text),
      typing: (isTyping) => states.push(isTyping),
    });
  });
  afterEach(() => vi.useRealTimers());

  function write(text: string, gapMs: number, prepares = true): void {
    for (let end = 1; end <= text.length; end += 1) {
      typing.key(text.slice(0, end), prepares);
      vi.advanceTimersByTime(gapMs);
    }
  }

  it("sends nothing where it is not wished", () => {
    write("hello", 400, false);

    expect(drafts).toEqual([]);
    expect(states).toEqual([true]);
  });

  it("sends the whole text after a pause", () => {
    write("hello", 100);
    expect(drafts).toEqual([]);
    vi.advanceTimersByTime(PAUSE_MS);

    expect(drafts).toEqual(["hello"]);
  });

  it("sends once a second while keys come", () => {
    write("x".repeat(50), 100);

    expect(drafts.map((text) => text.length)).toEqual([10, 20, 30, 40, 50]);
  });

  it("sends at once where a sentence is closed", () => {
    write("Is it? (It is.) Then", 20);
    expect(drafts).toEqual(["Is it?", "Is it? (It is.", "Is it? (It is.)"]);
  });

  it("says the same text once, and that it is gone", () => {
    write("hi ", 300);
    typing.key("", true);
    vi.advanceTimersByTime(PAUSE_MS);

    expect(drafts).toEqual(["h", "hi", ""]);
  });

  it("sends nothing after its message was sent", () => {
    write("hello", 100);
    typing.end();
    vi.advanceTimersByTime(REST_MS);

    expect(drafts).toEqual([]);
    expect(states).toEqual([true, false]);
  });

  it("takes back what was sent", () => {
    write("hello", 300);
    typing.withdraw();
    typing.withdraw();

    expect(drafts.at(-1)).toBe("");
    expect(drafts.filter((text) => text === "")).toHaveLength(1);
  });

  it("is over a while after the last key", () => {
    write("hello", 300, false);
    vi.advanceTimersByTime(REST_MS);

    expect(states).toEqual([true, false]);
  });
});
