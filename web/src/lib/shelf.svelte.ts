// The lists of conversations: loaded by pages, kept in step by what the socket says.

import type { ConversationView, OutwardFrame } from "../generated/events";
import { ApiError, api, type Changes, type ShelfName } from "./api";

type Kept = Exclude<ShelfName, "pinned">;

export class Shelf {
  #known = $state.raw<readonly ConversationView[]>([]);
  /** Where each list goes on; missing: it was not loaded, null: it is whole. */
  #cursors = $state.raw<Partial<Record<Kept, string | null>>>({});
  trouble = $state.raw<ApiError | null>(null);

  /** In the order of the last change. */
  readonly current: readonly ConversationView[] = $derived(this.#list(false));
  readonly archived: readonly ConversationView[] = $derived(this.#list(true));

  isLoaded(shelf: Kept): boolean {
    return this.#cursors[shelf] !== undefined;
  }

  hasMore(shelf: Kept): boolean {
    return typeof this.#cursors[shelf] === "string";
  }

  /** The first page, anew; what is pinned comes with the current ones, however old it is. */
  async load(shelf: Kept): Promise<void> {
    await this.#page(shelf, null);
    if (shelf === "current") await this.#trying(() => this.#pinned());
  }

  async more(shelf: Kept): Promise<void> {
    const cursor = this.#cursors[shelf];
    if (typeof cursor === "string") await this.#page(shelf, cursor);
  }

  /** Rejects with `ApiError`. */
  async change(id: string, changes: Changes): Promise<void> {
    this.#put([await api.change(id, changes)]);
  }

  /** Rejects with `ApiError`. */
  async remove(id: string): Promise<void> {
    await api.remove(id);
    this.#drop(id);
  }

  hear(frame: OutwardFrame): void {
    if (frame.type === "conversation.changed") this.#put([frame.conversation]);
    if (frame.type === "conversation.deleted") this.#drop(frame.conversation_id);
  }

  async #page(shelf: Kept, cursor: string | null): Promise<void> {
    await this.#trying(async () => {
      const { items, next_cursor } = await api.conversations(shelf, cursor);
      this.#put(items);
      this.#cursors = { ...this.#cursors, [shelf]: next_cursor };
    });
  }

  async #pinned(): Promise<void> {
    let cursor: string | null = null;
    do {
      const { items, next_cursor } = await api.conversations("pinned", cursor);
      this.#put(items);
      cursor = next_cursor;
    } while (cursor !== null);
  }

  async #trying(ask: () => Promise<void>): Promise<void> {
    try {
      await ask();
      this.trouble = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
    }
  }

  #list(archived: boolean): ConversationView[] {
    return this.#known
      .filter((one) => one.archived === archived)
      .sort((a, b) => b.updated_at - a.updated_at);
  }

  #put(conversations: readonly ConversationView[]): void {
    const isNew = ({ id }: ConversationView) => conversations.some((one) => one.id === id);
    this.#known = [...this.#known.filter((one) => !isNew(one)), ...conversations];
  }

  #drop(id: string): void {
    this.#known = this.#known.filter((one) => one.id !== id);
  }
}
