// What is tried at the server, and why it failed; and what the server was asked for.

import { ApiError } from "../lib/api";

export class Trial {
  trouble = $state.raw<ApiError | null>(null);
  isBusy = $state(false);

  /** Whether it went well; otherwise `trouble` says why. */
  async attempt(act: () => Promise<unknown>): Promise<boolean> {
    this.isBusy = true;
    this.trouble = null;
    try {
      await act();
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
      return false;
    } finally {
      this.isBusy = false;
    }
  }
}

/** Asks at once, and anew after each change. */
export class Asked<T> extends Trial {
  /** Null: not told yet. */
  value = $state.raw<T | null>(null);

  constructor(private readonly ask: () => Promise<T>) {
    super();
    void this.load();
  }

  async load(): Promise<boolean> {
    return this.change(() => Promise.resolve());
  }

  async change(act: () => Promise<unknown>): Promise<boolean> {
    return this.attempt(async () => {
      await act();
      this.value = await this.ask();
    });
  }
}
