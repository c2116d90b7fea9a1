// Unsent text, kept per user and conversation in this browser until the server has it.
//
// The client's message id is fixed with the first attempt to send and lives as long as the text is
// unchanged: sent again after a reload or a lost answer, it is still the same message (once).
// Whether it may go to the server before it is sent is kept here too; it may not until somebody says so.

import { createSubscriber } from "svelte/reactivity";

const PREFIX = "keepwarm.draft.";
export const SOON_MS = 400;

interface Unstored {
  readonly conversationId: string | null;
  readonly text: string;
}

interface Draft {
  readonly text: string;
  readonly clientMessageId?: string;
}

export class Drafts {
  /** Whoever shows what was wished hears of it. */
  #told = (): void => {};
  /** What is to be stored soon. */
  #soon: Unstored | undefined;
  #storing: ReturnType<typeof setTimeout> | undefined;
  readonly #watch = createSubscriber((told) => {
    this.#told = told;
  });

  constructor(
    private readonly userId: string,
    private readonly storage: Storage,
  ) {}

  text(conversationId: string | null): string {
    return this.#read(conversationId).text;
  }

  write(conversationId: string | null, text: string): void {
    if (text === this.text(conversationId)) return;
    if (text) this.#store(conversationId, { text });
    else this.clear(conversationId);
  }

  /** As `write`, but not at every key: a long text takes the browser a while to store. */
  writeSoon(conversationId: string | null, text: string): void {
    if (this.#soon?.conversationId !== conversationId) this.flush();
    this.#soon = { conversationId, text };
    this.#storing ??= setTimeout(() => this.flush(), SOON_MS);
  }

  /** Store what waits for it. */
  flush(): void {
    const soon = this.#drop();
    if (soon) this.write(soon.conversationId, soon.text);
  }

  /** The id under which `text` is sent, now and at every further attempt. */
  clientMessageId(conversationId: string | null, text: string): string {
    const draft = this.#read(conversationId);
    if (draft.text === text && draft.clientMessageId) return draft.clientMessageId;
    const clientMessageId = randomId();
    this.#store(conversationId, { text, clientMessageId });
    return clientMessageId;
  }

  /** The server has `text`; what was typed since then stays. */
  sent(conversationId: string | null, text: string): void {
    if (this.text(conversationId) === text) this.clear(conversationId);
  }

  get prepares(): boolean {
    this.#watch();
    return this.storage.getItem(this.#prepares) !== null;
  }

  set prepares(wished: boolean) {
    if (wished) this.#put(this.#prepares, "yes");
    else this.storage.removeItem(this.#prepares);
    this.#told();
  }

  clear(conversationId: string | null): void {
    if (this.#soon?.conversationId === conversationId) this.#drop();
    this.storage.removeItem(this.#key(conversationId));
  }

  /** On leaving: nothing of this user stays in the browser. */
  clearAll(): void {
    this.#drop();
    const mine = `${PREFIX}${this.userId}.`;
    for (const key of Object.keys(this.storage)) {
      if (key.startsWith(mine)) this.storage.removeItem(key);
    }
  }

  get #prepares(): string {
    return `${PREFIX}${this.userId}.prepares`;
  }

  #key(conversationId: string | null): string {
    return `${PREFIX}${this.userId}.${conversationId ?? "new"}`;
  }

  #drop(): Unstored | undefined {
    clearTimeout(this.#storing);
    const soon = this.#soon;
    this.#soon = undefined;
    this.#storing = undefined;
    return soon;
  }

  #read(conversationId: string | null): Draft {
    this.flush();
    const stored = this.storage.getItem(this.#key(conversationId));
    return stored ? (JSON.parse(stored) as Draft) : { text: "" };
  }

  #store(conversationId: string | null, draft: Draft): void {
    this.#put(this.#key(conversationId), JSON.stringify(draft));
  }

  // A full or forbidden storage costs the draft's safety, never the typing.
  #put(key: string, value: string): void {
    try {
      this.storage.setItem(key, value);
    } catch (error) {
      console.warn("The draft cannot be kept in this browser.", error);
    }
  }
}

/** 128 random bits; `crypto.randomUUID` is missing on plain http in a home network. */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
