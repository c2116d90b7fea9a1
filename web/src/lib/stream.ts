// The road where websockets are blocked: turns by POST, each live response as server-sent events.
// Gives out the very frames that the socket would.

import type { Cursor, OutwardFrame } from "../generated/events";
import { type Accepted, type Again, ApiError, api, fetched } from "./api";
import type { Question } from "./link";
import { strings } from "../strings/chat";

export class Stream {
  readonly #followed = new Map<string, AbortController>();

  constructor(
    private readonly hear: (frame: OutwardFrame) => void,
    private readonly lost: (error: unknown) => void,
  ) {}

  async ask(question: Question): Promise<OutwardFrame> {
    const request_id = "";
    if ("client_message_id" in question) {
      return this.#accepted(question.conversation_id, await turn(question));
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
        this.close();
        for (const cursor of question.cursors ?? []) this.#follow(cursor);
        return { ...question, type: "subscribed", request_id, leaf_id: null };
      case "unsubscribe":
        this.close();
        return { ...question, type: "unsubscribed", request_id };
    }
  }

  #accepted(conversationId: string, accepted: Accepted): OutwardFrame {
    this.#follow({ response_id: accepted.response.id, after: -1, epoch: "" });
    void this.#look(conversationId);
    return { type: "turn.accepted", request_id: "", ...accepted };
  }

  /** What the socket would say of a conversation by itself: its new title, its new leaf. */
  async #look(conversationId: string): Promise<void> {
    try {
      const { conversation } = await api.conversation(conversationId);
      this.hear({ type: "conversation.changed", conversation });
    } catch (error) {
      this.lost(error);
    }
  }

  close(): void {
    for (const controller of this.#followed.values()) controller.abort();
    this.#followed.clear();
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
    const { body } = await fetched(path, { signal, headers: { accept: "text/event-stream" } });
    if (!body) throw new ApiError("unreached", strings.emptyStream);
    const split = splitter();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      for (const data of split(value)) this.hear(JSON.parse(data) as OutwardFrame);
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
