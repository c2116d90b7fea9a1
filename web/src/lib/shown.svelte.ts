// What a section shows of the server: asked for, perhaps again, with what went wrong.

import { untrack } from "svelte";

import type { Page } from "./api";
import { ApiError } from "./api";

export class Shown<T> {
  value = $state.raw<T | null>(null);
  trouble = $state.raw<ApiError | null>(null);

  constructor(private readonly ask: () => Promise<T>) {}

  readonly load = async (): Promise<void> => {
    await this.trying(async () => {
      this.value = await this.ask();
    });
  };

  /** Does something, and then looks again. False where it went wrong. */
  readonly after = async (act: () => Promise<unknown>): Promise<boolean> =>
    this.trying(async () => {
      await act();
      this.value = await this.ask();
    });

  private async trying(act: () => Promise<void>): Promise<boolean> {
    try {
      await act();
      this.trouble = null;
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
      return false;
    }
  }
}

/** A list that comes in pages. */
export class Listed<T> {
  items = $state.raw<readonly T[]>([]);
  next = $state<string | null>(null);
  isKnown = $state(false);
  trouble = $state.raw<ApiError | null>(null);
  #asked = 0;

  constructor(private readonly ask: (cursor: string | null) => Promise<Page<T>>) {}

  /** From its beginning. */
  readonly load = (): Promise<void> => this.#read(null);
  readonly more = (): Promise<void> => this.#read(this.next);

  async #read(cursor: string | null): Promise<void> {
    const asked = ++this.#asked;
    try {
      const page = await this.ask(cursor);
      if (asked !== this.#asked) return;
      this.items = cursor === null ? page.items : [...this.items, ...page.items];
      this.next = page.next_cursor;
      this.isKnown = true;
      this.trouble = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
    }
  }
}

/**
 * Calls it now and then every so many seconds, while the page is looked at. An effect that does this
 * does not follow what is read in it: what it loads would call it again at once.
 */
export function every(seconds: number, act: () => unknown): () => void {
  untrack(act);
  const timer = setInterval(() => {
    if (document.visibilityState === "visible") act();
  }, seconds * 1000);
  return () => clearInterval(timer);
}
