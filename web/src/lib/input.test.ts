import { beforeEach, describe, expect, it, vi } from "vitest";

import { csrfToken } from "./api";
import { Drafts, SOON_MS } from "./drafts";
import { sends, startsNew, stops } from "./shortcuts";
import { backOffMs } from "./socket";
import { splitter } from "./stream";

const key = (init: KeyboardEventInit): KeyboardEvent => new KeyboardEvent("keydown", init);

describe("keys", () => {
  it("send with Enter, but not with Shift and never while a word is composed", () => {
    expect(sends(key({ key: "Enter" }))).toBe(true);
    expect(sends(key({ key: "Enter", shiftKey: true }))).toBe(false);
    expect(sends(key({ key: "Enter", isComposing: true }))).toBe(false);
    expect(sends(key({ key: "Enter", keyCode: 229 } as KeyboardEventInit))).toBe(false);
    expect(stops(key({ key: "Escape" }))).toBe(true);
    expect(stops(key({ key: "Escape", isComposing: true }))).toBe(false);
    expect(startsNew(key({ key: "O", shiftKey: true, ctrlKey: true }))).toBe(true);
    expect(startsNew(key({ key: "o", ctrlKey: true }))).toBe(false);
  });
});

describe("drafts", () => {
  const drafts = new Drafts("user_1", localStorage);
  beforeEach(() => localStorage.clear());

  it("are kept for each conversation and for one that is not made yet", () => {
    drafts.write("conv_1", "one");
    drafts.write(null, "two");

    expect(drafts.text("conv_1")).toBe("one");
    expect(drafts.text(null)).toBe("two");
    expect(drafts.text("conv_2")).toBe("");
  });

  it("keep their message's id until the text changes", () => {
    const id = drafts.clientMessageId("conv_1", "hello");

    expect(drafts.clientMessageId("conv_1", "hello")).toBe(id);
    drafts.write("conv_1", "hello");
    expect(drafts.clientMessageId("conv_1", "hello")).toBe(id);
    drafts.write("conv_1", "hello!");
    expect(drafts.clientMessageId("conv_1", "hello!")).not.toBe(id);
  });

  it("keep what was typed after sending", () => {
    drafts.clientMessageId("conv_1", "sent");
    drafts.write("conv_1", "typed since");
    drafts.sent("conv_1", "sent");

    expect(drafts.text("conv_1")).toBe("typed since");
  });

  it("are stored soon and not at every key, and read as if they were", () => {
    vi.useFakeTimers();
    drafts.writeSoon("conv_1", "o");
    drafts.writeSoon("conv_1", "on");
    expect(localStorage).toHaveLength(0);
    vi.advanceTimersByTime(SOON_MS);
    expect(new Drafts("user_1", localStorage).text("conv_1")).toBe("on");

    drafts.writeSoon("conv_1", "one");
    expect(drafts.text("conv_1")).toBe("one");
    drafts.writeSoon("conv_1", "gone");
    drafts.clear("conv_1");
    vi.advanceTimersByTime(SOON_MS);
    expect(localStorage).toHaveLength(0);
    vi.useRealTimers();
  });

  it("go to the server before they are sent only where somebody said so", () => {
    expect(drafts.prepares).toBe(false);
    drafts.prepares = true;

    expect(new Drafts("user_1", localStorage).prepares).toBe(true);
    expect(new Drafts("user_2", localStorage).prepares).toBe(false);
    drafts.prepares = false;
    expect(localStorage).toHaveLength(0);
  });

  it("are gone for one user only when that user leaves", () => {
    const other = new Drafts("user_2", localStorage);
    drafts.write("conv_1", "mine");
    other.write("conv_1", "theirs");
    drafts.clearAll();

    expect(drafts.text("conv_1")).toBe("");
    expect(other.text("conv_1")).toBe("theirs");
  });
});

describe("the line", () => {
  it("waits longer each time, within bounds, and never as long as its neighbour", () => {
    expect(backOffMs(0, 0)).toBe(250);
    expect(backOffMs(0, 1)).toBe(500);
    expect(backOffMs(3, 1)).toBe(4000);
    expect(backOffMs(50, 1)).toBe(10_000);
    expect(backOffMs(50, 0)).toBe(5_000);
  });

  it("finds the CSRF token among other cookies", () => {
    expect(csrfToken("a=1; kw_csrf=tok=en; b=2")).toBe("tok=en");
    expect(csrfToken("not_kw_csrf=1")).toBe("");
  });

  it.each(["\n", "\r\n"])("cuts an event stream anywhere, lines ending in %j", (end) => {
    const events = [
      "data: one",
      "id: 2",
      "data: two",
      "",
      ": comment",
      "",
      "data:a",
      "data: b",
      "",
      "",
    ];
    const text = ["data: zero", "", ...events].join(end);
    for (let size = 1; size <= text.length; size += 1) {
      const split = splitter();
      const found: string[] = [];
      for (let at = 0; at < text.length; at += size)
        found.push(...split(text.slice(at, at + size)));

      expect(found).toEqual(["zero", "one\ntwo", "a\nb"]);
    }
  });
});
