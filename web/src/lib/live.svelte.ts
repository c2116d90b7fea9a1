// Figures as they are and were: the past once, then each sample as it comes.

import { admin, type Figures } from "./admin";
import { ApiError } from "./api";
import { Samples } from "./samples";
import { appended } from "./series";

/** What is looked back on, and into how long stretches charts cut it; in seconds. */
export const RANGES = {
  minute: { sinceS: 60, stretchS: 10, apartS: 5 },
  quarter: { sinceS: 900, stretchS: 30, apartS: 5 },
  hours: { sinceS: 10_800, stretchS: 300, apartS: 60 },
  day: { sinceS: 86_400, stretchS: 1800, apartS: 600 },
} as const;
export type RangeName = keyof typeof RANGES;

/** A server that has just begun has little past; charts span at least so much. */
const LEAST_STRETCHES = 4;

export class Live {
  name = $state<RangeName>("quarter");
  samples = $state.raw<readonly Figures[]>([]);
  blockBytes = $state(0);
  /** Nothing comes just now; what is shown is of earlier. */
  isLost = $state(false);
  trouble = $state.raw<ApiError | null>(null);
  /** Why the server lets no more of them in; null where it does, or is not reached. */
  refusal = $state.raw<ApiError | null>(null);
  readonly range = $derived(RANGES[this.name]);
  readonly now = $derived(this.samples.at(-1) ?? null);
  /** Where the range begins, however little of it is known. */
  readonly since = $derived((this.now?.at ?? 0) - this.range.sinceS);
  /** What charts span: the whole range, or as much of it as is known. */
  readonly to = $derived(this.now?.at ?? 0);
  readonly from = $derived(
    Math.max(
      this.since,
      Math.min(this.samples[0]?.at ?? 0, this.to - LEAST_STRETCHES * this.range.stretchS),
    ),
  );
  #isStale = false;
  #samples: Samples | null = null;

  /** `account` asks the server who this is by now, and tells whether it answered. */
  constructor(private readonly account: () => Promise<boolean>) {}

  /** Until the function that it gives is called. */
  open(): () => void {
    void this.#read();
    const samples = (this.#samples = new Samples({
      hear: (sample) => this.#hear(sample),
      lost: () => this.#lose(),
      refused: (why) => (this.refusal = why),
      look: this.account,
    }));
    return () => samples.close();
  }

  /** After a refusal, without waiting any longer. */
  again(): void {
    this.#samples?.retry();
  }

  look(name: RangeName): void {
    this.name = name;
    void this.#read();
  }

  async #read(): Promise<void> {
    const name = this.name;
    try {
      const told = await admin.figures(this.range.sinceS);
      if (name !== this.name) return;
      this.samples = told.samples;
      this.blockBytes = told.block_bytes;
      this.trouble = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
    }
  }

  #hear(sample: Figures): void {
    this.isLost = false;
    this.refusal = null;
    if (this.#isStale) {
      void this.#read();
      // A role that changed between the last look and this connection is told by nobody else.
      void this.account();
    }
    this.#isStale = false;
    this.samples = appended(this.samples, sample, this.range.apartS, this.range.sinceS);
  }

  #lose(): void {
    this.isLost = this.#isStale = true;
  }
}
