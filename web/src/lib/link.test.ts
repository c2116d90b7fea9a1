import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { OutwardFrame } from "../generated/events";
import { ApiError, api } from "./api";
import { Link, type LinkStatus } from "./link";
import type { Question } from "./questions";

const LONGEST_WAIT_MS = 10_000;

interface Frame {
  readonly type: string;
  readonly text?: string;
  readonly number?: number;
  readonly request_id?: string;
  readonly cursors?: { readonly after: number }[];
}

/** A socket whose other end is the test: it lets in, tells, and cuts wherever it likes. */
class Wire {
  static all: Wire[] = [];

  /** The one that is open now. */
  static get now(): Wire {
    const [only, ...others] = Wire.all.filter((one) => !one.isOver);
    if (!only || others.length) throw new Error("there is not one open socket");
    return only;
  }

  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  readonly said: Frame[] = [];
  isOver = false;

  constructor() {
    Wire.all.push(this);
  }

  send(text: string): void {
    this.said.push(JSON.parse(text) as Frame);
  }

  close(): void {
    this.cut(1005);
  }

  tell(frame: Frame): void {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }

  greet(): void {
    this.onopen?.();
    this.tell({ type: "welcome" });
  }

  cut(code: number): void {
    if (this.isOver) return;
    this.isOver = true;
    this.onclose?.({ code });
  }

  asked(type: string): Frame | undefined {
    return this.said.findLast((frame) => frame.type === type);
  }

  get drafts(): (string | undefined)[] {
    return this.said.filter(({ type }) => type === "draft").map(({ text }) => text);
  }
}

const QUESTION: Question = {
  type: "turn.create",
  conversation_id: "conv_1",
  client_message_id: "1",
  parent_id: null,
  text: "Is it?",
};

let link: Link;
let heard: number[];
let statuses: LinkStatus[];
let fault: ApiError | null;

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("WebSocket", Wire);
  vi.spyOn(api, "account").mockRejectedValue(new ApiError("unreached", ""));
  begin();
});

afterEach(() => {
  link.close();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

function begin(): void {
  Wire.all = [];
  heard = [];
  statuses = [];
  fault = null;
  link = new Link({
    hear: (frame: OutwardFrame) => {
      const { number } = frame as unknown as Frame;
      if (number !== undefined) heard.push(number);
    },
    status: (status, why) => {
      statuses.push(status);
      fault = why;
    },
    signedOut: () => undefined,
  });
}

const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

describe("a link that is cut", () => {
  const LOG = 40;
  const fault = fc.record({
    at: fc.constantFrom("before it is open", "before its welcome", "later"),
    told: fc.nat(4),
    code: fc.constantFrom(1006, 1012),
  });

  /** The server's log from where the page asks for it, or a part of it. */
  function tell(wire: Wire, most: number): void {
    const after = wire.asked("subscribe")?.cursors?.[0]?.after ?? 0;
    for (let number = after + 1; number <= Math.min(LOG, after + most); number += 1) {
      wire.tell({ type: "told", number });
    }
  }

  it("hears all once and asks until it is answered, by one socket at a time", async () => {
    link.close();
    await fc.assert(
      fc.asyncProperty(fc.array(fault, { maxLength: 12 }), async (faults) => {
        begin();
        void link.watch({
          conversationId: "conv_1",
          cursors: () => [{ response_id: "resp_1", after: heard.length, epoch: "" }],
          returned: () => undefined,
        });
        const answered = link.insist(QUESTION);
        for (const { at, told, code } of faults) {
          const wire = Wire.now;
          if (at === "before its welcome") wire.onopen?.();
          if (at === "later") {
            wire.greet();
            tell(wire, told);
          }
          wire.cut(code);
          await pass(LONGEST_WAIT_MS);
        }
        const wire = Wire.now;
        wire.greet();
        tell(wire, LOG);
        await pass(LONGEST_WAIT_MS);
        wire.tell({ type: "turn.accepted", request_id: wire.asked("turn.create")?.request_id });

        expect((await answered).type).toBe("turn.accepted");
        expect(heard).toEqual(Array.from({ length: LOG }, (_, index) => index + 1));
        expect(statuses.at(-1)).toBe("online");
        link.close();
      }),
    );
  });
});

describe("what is typed while there is no connection", () => {
  const draft = (text: string): void =>
    link.tell({ type: "draft", conversation_id: null, parent_id: null, text });

  it("is told as it is when there is one", () => {
    draft("Is");
    draft("Is it?");
    Wire.now.greet();
    draft("Is it? Or");

    expect(Wire.now.drafts).toEqual(["Is it?", "Is it? Or"]);
    expect(statuses.at(-1)).toBe("online");
  });

  it("is not told any more once it was sent", async () => {
    draft("Is it?");
    await expect(link.ask(QUESTION)).rejects.toThrow();
    Wire.now.greet();

    expect(Wire.now.drafts).toEqual([]);
  });
});

describe("a link that is refused for a quota", () => {
  const quota = { kind: "sockets", limit: 1, resets_at: null };
  let streams: number;

  beforeEach(() => {
    streams = 0;
    vi.mocked(api.account).mockResolvedValue({} as Awaited<ReturnType<typeof api.account>>);
    vi.stubGlobal("fetch", () => {
      streams += 1;
      const problem = { code: "quota_exceeded", detail: "", field: null, quota };
      return Promise.resolve(new Response(JSON.stringify(problem), { status: 429 }));
    });
  });

  async function refuse(): Promise<void> {
    Wire.now.cut(1006);
    await pass(LONGEST_WAIT_MS);
    Wire.now.cut(1006);
    await pass(0);
  }

  it("says so and nothing else, and asks each minute", async () => {
    await refuse();
    expect(statuses).toEqual(["refused"]);
    expect(fault?.quota).toEqual(quota);

    await pass(59_000);
    expect(streams).toBe(1);
    await pass(1_000);
    Wire.now.cut(1006);
    await pass(0);
    expect(streams).toBe(2);
    expect(statuses).toEqual(["refused"]);
  });

  it("comes at once where somebody wants it", async () => {
    await refuse();
    link.retry();
    Wire.now.greet();

    expect(statuses).toEqual(["refused", "online"]);
    expect(fault).toBeNull();
  });
});
