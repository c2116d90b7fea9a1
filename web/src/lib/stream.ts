// The road where websockets are blocked: turns by POST, and server-sent events, one stream for all that
// changes and one for each live response on the screen. Gives out the very frames that the socket would.

import {
  type Cursor,
  type Draft,
  type OutwardFrame,
  type Presence,
  PROTOCOL,
  type StreamFrame,
} from "../generated/events";
import { type Accepted, type Again, ApiError, api, fetched } from "./api";
import type { Question } from "./questions";
import { strings } from "../strings/chat";

export class Stream {
  readonly #followed = new Map<string, AbortController>();
  readonly #everything = new AbortController();
  /** What the server calls this page; null until it has said so. */
  #pageId: string | null = null;
  #watched: string | null = null;

  constructor(
    private readonly hear: (frame: OutwardFrame) => void,
    private readonly opened: () => void,
    private readonly lost: (error: unknown) => void,
  ) {
    void this.#watchEverything();
  }

  /** A hint, which nobody answers. */
  tell(hint: Draft | Presence): void {
    if (this.#pageId !== null) void api.hint(this.#pageId, hint).catch(() => {});
  }

  async ask(question: Question): Promise<OutwardFrame> {
    const request_id = "";
    if ("client_message_id" in question) {
      return this.#accepted(await turn(question));
    }
    switch (question.type) {
      case "leaf.choose": {
        const { conversation_id, message_id } = question;
        const { leaf_id } = await api.choose(conversation_id, message_id);
        return {
          type: "leaf.chosen",
          request_id,
          conversation_id,
          leaf_id: leaf_id ?? message_id,
        };
      }
      case "response.cancel": {
        const { response_id } = question;
        const { step } = await api.cancel(response_id);
        return { type: "response.cancel.accepted", request_id, response_id, step };
      }
      case "subscribe":
        this.#unfollow();
        for (const cursor of question.cursors ?? []) this.#follow(cursor);
        this.#watched = question.conversation_id;
        this.#tellIfSeen();
        return { ...question, type: "subscribed", request_id, leaf_id: null };
      case "unsubscribe":
        this.#unfollow();
        this.#watched = null;
        this.tell({ ...question, type: "presence", state: "closed" });
        return { ...question, type: "unsubscribed", request_id };
    }
  }

  #accepted(accepted: Accepted): OutwardFrame {
    this.#follow({ response_id: accepted.response.id, after: -1, epoch: "" });
    return { type: "turn.accepted", request_id: "", ...accepted };
  }

  close(): void {
    this.#everything.abort();
    this.#unfollow();
  }

  #unfollow(): void {
    for (const controller of this.#followed.values()) controller.abort();
    this.#followed.clear();
  }

  // A stream that ends has left something out, or its server goes: both are a new beginning.
  async #watchEverything(): Promise<void> {
    const { signal } = this.#everything;
    try {
      await this.#each<StreamFrame>(`/api/events?protocol=${PROTOCOL}`, signal, (frame) =>
        this.#heard(frame),
      );
      if (!signal.aborted) this.lost(null);
    } catch (error) {
      if (!signal.aborted) this.lost(error);
    }
  }

  #heard(frame: StreamFrame): void {
    if (frame.type === "page.opened") {
      this.#pageId = frame.page_id;
      this.opened();
      this.#tellIfSeen();
    } else if (frame.type === "response.started") {
      const { id: response_id, conversation_id } = frame.response;
      if (conversation_id === this.#watched) this.#follow({ response_id, after: -1, epoch: "" });
    } else this.hear(frame);
  }

  #tellIfSeen(): void {
    if (this.#watched === null) return;
    const state = document.hidden ? "hidden" : "open";
    this.tell({ type: "presence", conversation_id: this.#watched, state });
  }

  #follow(cursor: Cursor): void {
    if (this.#followed.has(cursor.response_id)) return;
    const controller = new AbortController();
    this.#followed.set(cursor.response_id, controller);
    this.#read(cursor, controller.signal)
      .catch((error: unknown) => {
        if (!controller.signal.aborted) this.lost(error);
      })
      .finally(() => this.#followed.delete(cursor.response_id));
  }

  async #read({ response_id, after, epoch }: Cursor, signal: AbortSignal): Promise<void> {
    const query = new URLSearchParams({ after: String(after), ...(epoch ? { epoch } : {}) });
    const path = `/api/responses/${encodeURIComponent(response_id)}/events?${query}`;
    await this.#each<OutwardFrame>(path, signal, this.hear);
  }

  async #each<T>(path: string, signal: AbortSignal, hear: (frame: T) => void): Promise<void> {
    const { body } = await fetched(path, { signal, headers: { accept: "text/event-stream" } });
    if (!body) throw new ApiError("unreached", strings.emptyStream);
    const split = splitter();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      for (const data of split(value)) hear(JSON.parse(data) as T);
    }
  }
}

type Turn = Extract<Question, { client_message_id: string }>;

function turn(question: Turn): Promise<Accepted> {
  const { conversation_id: id, client_message_id } = question;
  switch (question.type) {
    case "turn.create":
      return api.turn(id, client_message_id, question.parent_id, question.text);
    case "turn.edit":
      return api.edit(id, question.message_id, question.text, again(question));
    case "turn.regenerate":
      return api.regenerate(id, question.message_id, again(question));
    case "turn.continue":
      return api.goOn(id, question.message_id, again(question));
  }
}

const again = ({ client_message_id, leaf_id }: Again): Again => ({ client_message_id, leaf_id });

/** Feed it pieces of an event stream; it gives the data of every event that is complete. */
export function splitter(): (piece: string) => string[] {
  let rest = "";
  return (piece) => {
    // A "\r" at the end may be half of "\r\n": it waits for what follows.
    const held = (rest + piece).replace(/\r\n/g, "\n");
    const events = held.replace(/\r(?!$)/g, "\n").split("\n\n");
    rest = events.pop() ?? "";
    return events.map(dataOf).filter((data) => data !== "");
  };
}

function dataOf(event: string): string {
  return event
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(line.startsWith("data: ") ? 6 : 5))
    .join("\n");
}
