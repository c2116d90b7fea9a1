// How warm one's conversations are, as the server tells it: what the next turn will not compute again.

import type { OutwardFrame, Warmth } from "../generated/events";

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
