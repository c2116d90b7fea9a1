import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Link, type LinkStatus } from "./link";

interface Frame {
  readonly type: string;
  readonly text?: string;
}

/** A socket whose other end is the test. */
class Wire {
  static last: Wire;

  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  readonly said: Frame[] = [];

  constructor() {
    Wire.last = this;
  }

  send(text: string): void {
    this.said.push(JSON.parse(text) as Frame);
  }

  close(): void {
    this.onclose?.({ code: 1005 });
  }

  greet(): void {
    this.onopen?.();
    this.onmessage?.({ data: JSON.stringify({ type: "welcome" }) });
  }

  get drafts(): (string | undefined)[] {
    return this.said.filter(({ type }) => type === "draft").map(({ text }) => text);
  }
}

describe("what is typed while there is no connection", () => {
  let link: Link;
  const statuses: LinkStatus[] = [];

  beforeEach(() => {
    vi.stubGlobal("WebSocket", Wire);
    link = new Link({
      hear: () => undefined,
      status: (status) => statuses.push(status),
      signedOut: () => undefined,
    });
  });
  afterEach(() => {
    link.close();
    vi.unstubAllGlobals();
  });

  const draft = (text: string): void =>
    link.tell({ type: "draft", conversation_id: null, parent_id: null, text });

  it("is told as it is when there is one", () => {
    draft("Is");
    draft("Is it?");
    Wire.last.greet();
    draft("Is it? Or");

    expect(Wire.last.drafts).toEqual(["Is it?", "Is it? Or"]);
    expect(statuses.at(-1)).toBe("online");
  });

  it("is not told any more once it was sent", async () => {
    draft("Is it?");
    const asked = link.ask({
      type: "turn.create",
      conversation_id: "conv_1",
      client_message_id: "1",
      parent_id: null,
      text: "Is it?",
    });
    await expect(asked).rejects.toThrow();
    Wire.last.greet();

    expect(Wire.last.drafts).toEqual([]);
  });
});
