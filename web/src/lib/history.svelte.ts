// How much of a conversation is here: its newest messages, and page by page those before them.

import type { MessageView } from "../generated/events";
import { api } from "./api";
import { isEnough, oldest, shownOf } from "./pages";
import { earlier, type Loaded, type State } from "./reduce";

/** What is shown: the conversation's state, and of its messages those of the chosen branch. */
interface Reader {
  readonly id: string | null;
  readonly messages: readonly MessageView[];
  state: State;
  /** Rejections become what the reader is told. */
  during(asked: Promise<unknown>): Promise<void>;
}

export class History {
  /** Where the messages begin that are older than all that are here; null: there are none. */
  #before = $state.raw<string | null>(null);
  readonly isWhole = $derived(this.#before === null);
  /** The page on its way: whoever wants more meanwhile waits for it as well. */
  #coming: { readonly before: string; readonly read: Promise<void> } | null = null;

  constructor(private readonly reader: Reader) {}

  /** What can be shown of a branch, whose beginning may not be here. */
  shown(path: MessageView[]): MessageView[] {
    return shownOf(path, this.isWhole);
  }

  /** Another conversation is shown, and nothing of it is here yet. */
  forget(): void {
    this.#before = this.#coming = null;
  }

  /** The newest messages, back to the oldest that was here before. Rejects with `ApiError`. */
  async newest(id: string): Promise<Loaded> {
    const opened = await api.conversation(id);
    const { conversation } = opened;
    let { messages, next_cursor: before } = opened;
    const since = oldest(this.reader.state.messages);
    while (before !== null && !isEnough(messages, conversation.leaf_id, since)) {
      const page = await api.messages(id, before);
      messages = [...page.items.toReversed(), ...messages];
      before = page.next_cursor;
    }
    if (id === this.reader.id) this.#before = before;
    return { type: "loaded", conversation, messages };
  }

  /** Have more of what was said before on this branch. */
  async earlier(): Promise<void> {
    const had = this.reader.messages.length;
    await this.#back(() => this.reader.messages.length > had);
  }

  /** Have the message here, however long ago it was said. */
  async reach(messageId: string | null | undefined): Promise<void> {
    if (!messageId || this.isWhole || this.reader.state.messages[messageId]) return;
    await this.#back(() => messageId in this.reader.state.messages);
  }

  async #back(isThere: () => boolean): Promise<void> {
    const { id } = this.reader;
    if (id !== null) await this.reader.during(this.#read(id, isThere));
  }

  async #read(id: string, isThere: () => boolean): Promise<void> {
    while (id === this.reader.id && this.#before !== null && !isThere())
      await this.#page(id, this.#before);
  }

  #page(id: string, before: string): Promise<void> {
    if (this.#coming?.before !== before) this.#coming = { before, read: this.#ask(id, before) };
    return this.#coming.read;
  }

  async #ask(id: string, before: string): Promise<void> {
    try {
      const page = await api.messages(id, before);
      if (id !== this.reader.id || before !== this.#before) return;
      this.reader.state = earlier(this.reader.state, page.items);
      this.#before = page.next_cursor;
    } finally {
      if (this.#coming?.before === before) this.#coming = null;
    }
  }
}
