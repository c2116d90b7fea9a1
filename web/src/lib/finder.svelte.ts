// What is looked for in all messages, and what was found. Asks a moment after the last key.

import { ApiError, api, type Found } from "./api";

const PAUSE_MS = 180;

export class Finder {
  words = $state("");
  found = $state.raw<readonly Found[]>([]);
  /** The words that `found` is of; the newest may still be looked for. */
  foundWords = $state("");
  trouble = $state.raw<ApiError | null>(null);
  #cursor = $state<string | null>(null);
  #timer: ReturnType<typeof setTimeout> | undefined;

  get hasMore(): boolean {
    return this.#cursor !== null;
  }

  /** Something was typed. */
  changed(): void {
    clearTimeout(this.#timer);
    if (this.words.trim()) this.#timer = setTimeout(() => void this.#look(null), PAUSE_MS);
    else this.clear();
  }

  clear(): void {
    clearTimeout(this.#timer);
    this.words = "";
    this.foundWords = "";
    this.found = [];
    this.trouble = null;
    this.#cursor = null;
  }

  async more(): Promise<void> {
    if (this.#cursor !== null) await this.#look(this.#cursor);
  }

  async #look(cursor: string | null): Promise<void> {
    const { words } = this;
    try {
      const { items, next_cursor } = await api.search(words, cursor);
      if (words !== this.words) return;
      this.found = cursor === null ? items : [...this.found, ...items];
      this.#cursor = next_cursor;
      this.foundWords = words;
      this.trouble = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (words === this.words) this.trouble = error;
    }
  }
}
