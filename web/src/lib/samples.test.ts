import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { Figures } from "../generated/admin";
import { type Frame, Source, Wire } from "./ends";
import { Samples } from "./samples";
import { TRY_AGAIN_MS } from "./socket";

const LONGEST_WAIT_MS = 10_000;

const sample = (at: number): Frame => ({ type: "figures", at });
const refusal = (code: string): Frame & { error: object } => ({
  type: "error",
  request_id: "figures",
  error: { code, message: "", field: null, retry_after_s: null, quota: null },
});

describe("the samples of the dashboard", () => {
  let heard: number[];
  let losses: number;
  let looks: number;
  let refusals: (string | undefined)[];
  let samples: Samples;
  let isReached: boolean;
  let isDismissed: boolean;

  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("WebSocket", Wire);
    vi.stubGlobal("EventSource", Source);
    begin();
  });

  afterEach(() => {
    samples.close();
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  function begin(): void {
    Wire.all = [];
    Source.all = [];
    heard = [];
    losses = looks = 0;
    refusals = [];
    isReached = true;
    isDismissed = false;
    samples = new Samples({
      hear: ({ at }: Figures) => heard.push(at),
      lost: () => (losses += 1),
      refused: (why) => refusals.push(why.quota?.kind),
      look,
    });
  }

  /** As the page does it, which goes when the account may not see it. */
  function look(): Promise<boolean> {
    looks += 1;
    if (isDismissed) samples.close();
    return Promise.resolve(isReached);
  }

  const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

  async function block(): Promise<void> {
    for (let refused = 0; refused < 2; refused += 1) {
      Wire.now.cut();
      await pass(refused === 1 ? 0 : LONGEST_WAIT_MS);
    }
  }

  it("are asked for after the welcome and heard as they come", () => {
    Wire.now.onopen?.();
    expect(Wire.now.saidTypes).toEqual(["hello"]);
    Wire.now.tell({ type: "welcome" });
    expect(Wire.now.saidTypes).toEqual(["hello", "figures.watch"]);
    for (const frame of [{ type: "figures.watched" }, sample(1), sample(2)]) Wire.now.tell(frame);

    expect(Wire.now.url).toMatch(/^ws.*\/ws$/);
    expect(heard).toEqual([1, 2]);
    expect(losses).toBe(0);
  });

  const FAULTS = ["refused", "unheard", "greeted", "told", "without engine"] as const;

  async function suffer(fault: (typeof FAULTS)[number], at: number): Promise<void> {
    const wire = Wire.now;
    if (fault === "unheard") wire.onopen?.();
    else if (fault !== "refused") wire.greet();
    if (fault === "told") wire.tell(sample(at));
    if (fault === "without engine") {
      wire.tell(refusal("unavailable"));
      await pass(LONGEST_WAIT_MS);
      expect(wire.saidTypes).toEqual(["hello", "figures.watch", "figures.watch"]);
      expect(Wire.now).toBe(wire);
    }
    wire.cut();
    await pass(LONGEST_WAIT_MS);
  }

  it("come again after any cuts, each once, by one socket at a time", async () => {
    samples.close();
    await fc.assert(
      fc.asyncProperty(fc.array(fc.constantFrom(...FAULTS), { maxLength: 20 }), async (faults) => {
        begin();
        isReached = false;
        for (const [at, fault] of faults.entries()) await suffer(fault, at);
        Wire.now.greet();
        Wire.now.tell(sample(faults.length));

        const told = [...faults.entries()].filter(([, fault]) => fault === "told");
        expect(heard).toEqual([...told.map(([at]) => at), faults.length]);
        expect(losses > 0).toBe(faults.length > 0);
        expect(Source.all).toEqual([]);
        samples.close();
        await pass(TRY_AGAIN_MS);
        expect(Wire.open).toEqual([]);
      }),
    );
  });

  it("come over the stream where upgrades are refused, and by the socket when one is not", async () => {
    await block();
    const [stream] = Source.open;
    stream?.tell(sample(1));
    expect(Wire.open).toEqual([]);
    await pass(TRY_AGAIN_MS);
    Wire.now.cut();
    await pass(TRY_AGAIN_MS);
    expect(Source.open).toEqual([stream]);

    Wire.now.greet();
    stream?.tell(sample(2));
    Wire.now.tell(sample(3));

    expect(heard).toEqual([1, 2, 3]);
    expect(Source.open).toEqual([]);
  });

  it("are tried anew from the beginning where the stream is refused too", async () => {
    await block();
    Source.open[0]?.refuse();
    await pass(LONGEST_WAIT_MS);

    Wire.now.greet();
    Wire.now.tell(sample(1));
    expect(heard).toEqual([1]);
    expect(losses).toBeGreaterThan(0);
  });

  it("are not told at all where the account has too many open, and it is said why", async () => {
    const tooMany = {
      code: "quota_exceeded",
      quota: { kind: "sockets", limit: 1, resets_at: null },
    };
    const answer = () => Promise.resolve(new Response(JSON.stringify(tooMany), { status: 429 }));
    vi.stubGlobal("fetch", vi.fn(answer));
    await block();
    Source.open[0]?.refuse();
    await pass(0);

    expect(refusals).toEqual(["sockets"]);
    await pass(LONGEST_WAIT_MS);
    expect([Wire.open, Source.open]).toEqual([[], []]);

    samples.retry();
    Wire.now.greet();
    Wire.now.tell(sample(1));
    expect(heard).toEqual([1]);
  });

  it("never come over the stream while the server is not reached", async () => {
    isReached = false;
    for (let cuts = 0; cuts < 4; cuts += 1) {
      Wire.now.cut();
      await pass(LONGEST_WAIT_MS);
    }

    expect(Source.all).toEqual([]);
  });

  const DISMISSALS = {
    "is refused them": () => Wire.now.tell(refusal("forbidden")),
    "is sent away": () => Wire.now.cut(),
  };

  it.each(Object.entries(DISMISSALS))("end with a look at who %s", async (_, dismiss) => {
    Wire.now.greet();
    isDismissed = true;
    dismiss();
    await pass(TRY_AGAIN_MS);

    expect([losses, looks]).toEqual([1, 1]);
    expect(Wire.all).toHaveLength(1);
    expect(Wire.open).toEqual([]);
  });

  it("end with a look where the stream is refused to whom it was given", async () => {
    await block();
    isDismissed = true;
    Source.open[0]?.refuse();
    await pass(TRY_AGAIN_MS);

    expect(Wire.open).toEqual([]);
    expect(Source.open).toEqual([]);
  });

  it("are looked for at once when the network is back", async () => {
    isReached = false;
    Wire.now.cut();
    await pass(0);
    expect(Wire.open).toEqual([]);
    dispatchEvent(new Event("online"));

    expect(Wire.open).toHaveLength(1);
    await pass(LONGEST_WAIT_MS);
    expect(Wire.open).toHaveLength(1);
  });

  it("end with the page, whatever is on its way", async () => {
    const wire = Wire.now;
    wire.greet();
    samples.close();
    wire.tell(sample(1));
    await pass(TRY_AGAIN_MS);

    expect(heard).toEqual([]);
    expect(Wire.all).toHaveLength(1);
  });
});
