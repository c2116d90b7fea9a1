// How warm one's conversations are, as the server tells it: what the next turn will not compute again.

import type { OutwardFrame, Warmth } from "../generated/events";
import { count } from "./format";

export type { Warmth } from "../generated/events";

export class Hearth {
  #known = $state.raw<Readonly<Record<string, Warmth>>>({});

  /** Null: nothing was told of it. */
  of(id: string | null): Warmth | null {
    return (id === null ? null : this.#known[id]) ?? null;
  }

  /** A new connection is told of everything anew. */
  forget(): void {
    this.#known = {};
  }

  hear(frame: OutwardFrame): void {
    if (frame.type !== "conversation.warmth") return;
    const told = frame.conversations.map((one) => [one.conversation_id, one] as const);
    this.#known = { ...this.#known, ...Object.fromEntries(told) };
  }
}

/** What the next turn will cost, in a sentence; empty where nothing was computed yet. */
export function warmthWords(warmth: Warmth): string {
  const { state, device_tokens: ready, host_tokens: near, disk_tokens: far } = warmth;
  if (state === "warm") {
    return `${count(ready)} tokens of it are ready: the next turn computes only what is new.`;
  }
  if (state === "parked") {
    return `${count(near + far)} tokens of it are parked: the next turn fetches them first.`;
  }
  return "It has cooled down: the next turn computes it again, once.";
}
