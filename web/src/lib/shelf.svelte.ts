// The list of conversations: loaded by pages, kept in step by what the socket says.

import type { ConversationView, OutwardFrame } from "../generated/events";
import { ApiError, api } from "./api";

export class Shelf {
  items = $state.raw<readonly ConversationView[]>([]);
  isLoaded = $state(false);
  trouble = $state.raw<ApiError | null>(null);
  #cursor = $state<string | null>(null);

  get hasMore(): boolean {
    return this.#cursor !== null;
  }

  /** The first page, anew. */
  async load(): Promise<void> {
    this.#cursor = null;
    await this.#page();
  }

  async more(): Promise<void> {
    if (this.hasMore) await this.#page();
  }

  async rename(id: string, title: string): Promise<void> {
    this.#put(await api.rename(id, title));
  }

  async remove(id: string): Promise<void> {
    await api.remove(id);
    this.#drop(id);
  }

  hear(frame: OutwardFrame): void {
    if (frame.type === "conversation.changed") this.#put(frame.conversation);
    if (frame.type === "conversation.deleted") this.#drop(frame.conversation_id);
  }

  async #page(): Promise<void> {
    try {
      const { items, next_cursor } = await api.conversations(this.#cursor);
      for (const item of items) this.#put(item);
      this.#cursor = next_cursor;
      this.trouble = null;
      this.isLoaded = true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
    }
  }

  #put(conversation: ConversationView): void {
    const others = this.items.filter(({ id }) => id !== conversation.id);
    this.items = [conversation, ...others].sort((a, b) => b.updated_at - a.updated_at);
  }

  #drop(id: string): void {
    this.items = this.items.filter((item) => item.id !== id);
  }
}
