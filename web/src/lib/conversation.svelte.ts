// The conversation on the screen: the rune store around `reduce`. Sends, stops, loads, resumes.

import type { ConversationView, MessageView, OutwardFrame } from "../generated/events";
import { ApiError, api } from "./api";
import { type Drafts, randomId } from "./drafts";
import { type Head, idsOf, NO_HEAD } from "./library";
import { History } from "./history.svelte";
import type { Link } from "./link";
import type { Question } from "./questions";
import { conversationOf, cursors, EMPTY, leafOf, live, reduce, textOf } from "./reduce";
import type { Loaded, State } from "./reduce";
import { alternatives, path } from "./tree";

/** A message on its way: shown at once, until the server says it is stored. */
export interface Sending {
  readonly clientMessageId: string;
  readonly text: string;
}

export type Phase = "new" | "loading" | "ready" | "missing";

export class Conversation {
  state = $state.raw<State>(EMPTY);
  id = $state<string | null>(null);
  phase = $state<Phase>("new");
  head = $state.raw<Head>(NO_HEAD);
  /** How often another conversation was chosen; one that is made by sending is no other. */
  choices = $state(0);
  sending = $state.raw<Sending | null>(null);
  /** Something else is asked for in place of a message, and not accepted yet. */
  isBranching = $state(false);
  isSummarising = $state(false);
  /** The message that is being changed. */
  editing = $state<string | null>(null);
  /** The last attempt to send or load failed; in words, until the next attempt. */
  trouble = $state.raw<ApiError | null>(null);

  readonly history = new History(this);
  readonly messages: readonly MessageView[] = $derived(
    this.history.shown(path(this.state.messages, leafOf(this.state))),
  );
  readonly answering = $derived(live(this.state).at(-1) ?? null);
  readonly isBusy: boolean = $derived(
    this.sending !== null || this.isBranching || this.isSummarising || this.answering !== null,
  );
  readonly #alternatives = $derived(alternatives(this.state.messages));
  /** The sent message, as long as it is not among the stored ones. */
  readonly pending: Sending | null = $derived(
    this.messages.some(
      ({ client_message_id: id }) => id !== null && id === this.sending?.clientMessageId,
    )
      ? null
      : this.sending,
  );

  #link: Link | null = null;
  #frames: (OutwardFrame | Loaded)[] = [];
  #scheduled = false;
  #resuming = false;

  constructor(private readonly drafts: Drafts) {}

  attach(link: Link): void {
    this.#link = link;
  }

  /** Show another conversation; null: one that is not made yet. */
  async open(id: string | null): Promise<void> {
    if (id === this.id && this.phase !== "missing") return;
    this.choices += 1;
    this.#show(id, id === null ? "new" : "loading");
    await this.#link?.watch(id === null ? null : this.#watch(id));
    if (id !== null) await this.#load(id);
  }

  textOf(message: MessageView): string {
    return textOf(this.state, message);
  }

  /** The message and what was said in its place, oldest first; empty where there is no choice. */
  alternativesTo(message: MessageView): readonly string[] {
    return this.#alternatives.get(message.id) ?? [];
  }

  /** Store `text` as the next message, making the conversation first where there is none. */
  async send(text: string): Promise<void> {
    const clientMessageId = this.drafts.clientMessageId(this.id, text);
    this.sending = { clientMessageId, text };
    this.trouble = null;
    const from = this.id;
    try {
      const id = this.id ?? (await this.#make());
      await this.#link?.insist({
        type: "turn.create",
        conversation_id: id,
        client_message_id: clientMessageId,
        parent_id: leafOf(this.state),
        text,
      });
      this.drafts.sent(from, text);
    } catch (error) {
      await this.#unsent(error, text, from);
    } finally {
      this.#flush();
      this.sending = null;
    }
  }

  async stop(): Promise<void> {
    const response_id = this.answering?.id;
    if (response_id) await this.#ask({ type: "response.cancel", response_id });
  }

  /** Say `text` in the message's place. Whether the server has it; if not, `trouble` says why. */
  async edit(message: MessageView, text: string): Promise<boolean> {
    return this.#branch({ type: "turn.edit", text, ...this.#inPlaceOf(message) });
  }

  async regenerate(message: MessageView): Promise<void> {
    await this.#branch({ type: "turn.regenerate", ...this.#inPlaceOf(message) });
  }

  /** Go on with an answer that was cut short. */
  async goOn(message: MessageView): Promise<void> {
    await this.#branch({ type: "turn.continue", ...this.#inPlaceOf(message) });
  }

  async choose(message_id: string): Promise<void> {
    const conversation_id = this.id;
    if (conversation_id) await this.#ask({ type: "leaf.choose", conversation_id, message_id });
  }

  async #ask(question: Question): Promise<void> {
    await this.during(this.#link?.ask(question));
  }

  /** A new conversation of everything up to this message: its id, or null and `trouble`. */
  fork(message: MessageView): Promise<string | null> {
    return this.#made(api.fork(message.conversation_id, message.id));
  }

  /**
   * A new conversation that begins with a summary of this one and has room for `text`: its id, or null
   * and `trouble`.
   */
  async summarise(text: string): Promise<string | null> {
    const leaf_id = leafOf(this.state);
    if (this.id === null || leaf_id === null) return null;
    this.isSummarising = true;
    const id = await this.#made(
      api.summarise(this.id, { client_message_id: randomId(), leaf_id }, text),
    );
    this.isSummarising = false;
    return id;
  }

  async #made(asked: Promise<ConversationView>): Promise<string | null> {
    let id: string | null = null;
    await this.during(asked.then((made) => (id = made.id)));
    return id;
  }

  /** Something else that is asked for here: if it fails, `trouble` says why. */
  async during(asked: Promise<unknown> | undefined): Promise<void> {
    this.trouble = null;
    await asked?.catch((error: unknown) => this.#troubled(error));
  }

  async stopSummary(): Promise<void> {
    if (this.id !== null) await this.during(api.stopSummary(this.id));
  }

  /** Delete the message and all below it. Rejects with `ApiError`. */
  async prune(message: MessageView): Promise<void> {
    await api.prune(message.conversation_id, message.id);
    await this.#load(message.conversation_id);
  }

  #inPlaceOf(message: MessageView) {
    return {
      conversation_id: message.conversation_id,
      client_message_id: randomId(),
      message_id: message.id,
      leaf_id: leafOf(this.state) ?? message.id,
    };
  }

  async #branch(question: Question): Promise<boolean> {
    this.isBranching = true;
    this.trouble = null;
    try {
      await this.#link?.insist(question);
      return true;
    } catch (error) {
      this.#troubled(error);
      if (this.id !== null) await this.#load(this.id);
      return false;
    } finally {
      this.#flush();
      this.isBranching = false;
    }
  }

  /** What may be prepared of an unsent message; while an answer is written nothing can be. */
  draft(text: string): void {
    if (this.isBusy || (this.phase !== "ready" && this.phase !== "new")) return;
    const place = { conversation_id: this.id, parent_id: leafOf(this.state) };
    this.#link?.tell({ type: "draft", ...place, text, ...idsOf(this.head) });
  }

  typing(isTyping: boolean): void {
    if (this.id === null) return;
    const state = isTyping ? "typing" : document.hidden ? "hidden" : "open";
    this.#link?.tell({ type: "presence", conversation_id: this.id, state });
  }

  async #make(): Promise<string> {
    const conversation = await api.create(idsOf(this.head));
    this.#show(conversation.id, "ready");
    this.state = { ...EMPTY, conversation };
    await this.#link?.watch(this.#watch(conversation.id));
    return conversation.id;
  }

  // The draft was kept; of a conversation that was just made, it moves there.
  async #unsent(error: unknown, text: string, from: string | null): Promise<void> {
    if (from !== this.id) {
      this.drafts.sent(from, text);
      this.drafts.write(this.id, text);
    }
    this.#troubled(error);
    if (this.trouble?.code === "parent_moved" && this.id !== null) await this.#load(this.id);
  }

  hear(frame: OutwardFrame | Loaded): void {
    if (conversationOf(frame) !== this.id || this.id === null) return;
    this.#frames.push(frame);
    if (this.#scheduled) return;
    this.#scheduled = true;
    // One new state for each picture; a hidden page draws none, so there a timer stands in.
    if (document.hidden) setTimeout(() => this.#flush(), 100);
    else requestAnimationFrame(() => this.#flush());
  }

  #flush(): void {
    this.#scheduled = false;
    const frames = this.#frames;
    this.#frames = [];
    if (frames.length > 0) this.state = frames.reduce(reduce, this.state);
    if (this.state.gaps.length > 0) void this.#resume();
    void this.history.reach(this.state.conversation?.leaf_id);
  }

  async #resume(): Promise<void> {
    if (this.#resuming || this.id === null) return;
    this.#resuming = true;
    await this.#link?.watch(this.#watch(this.id));
    this.#resuming = false;
  }

  async #load(id: string): Promise<void> {
    try {
      const loaded = await this.history.newest(id);
      if (id !== this.id) return;
      this.hear(loaded);
      this.#flush();
      const unread = live(this.state).some((response) => !this.state.readings[response.id]);
      if (this.phase === "loading") this.trouble = null;
      this.phase = "ready";
      if (unread) await this.#resume();
    } catch (error) {
      if (id !== this.id) return;
      if (error instanceof ApiError && error.status === 404) this.phase = "missing";
      else this.#troubled(error);
    }
  }

  #watch(id: string) {
    return {
      conversationId: id,
      cursors: () => cursors(this.state),
      returned: () => void this.#load(id),
    };
  }

  #show(id: string | null, phase: Phase): void {
    this.id = id;
    this.phase = phase;
    this.state = EMPTY;
    this.history.forget();
    this.head = NO_HEAD;
    this.trouble = this.editing = null;
    this.#frames = [];
  }

  #troubled(error: unknown): void {
    if (!(error instanceof ApiError)) throw error;
    this.trouble = error;
  }
}
