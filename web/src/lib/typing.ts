// When unsent text goes to the server: soon after the last key, now and then while keys come, and at
// once where a key closes a sentence, for what follows may be Enter.
// Knows no text field and no socket; whether text may be sent at all is for its owner to say.

export const PAUSE_MS = 250;
export const EVERY_MS = 1000;
/** Without a key for so long nobody is typing any more. */
export const REST_MS = 10_000;

const SENTENCE_END = /[.!?…。！？؟]["')\]”’»]*$/;

/** How long after a key at `now` to wait; `since` is when the first key came that was not sent. */
export function delayMs(now: number, since: number): number {
  return Math.max(0, Math.min(PAUSE_MS, since + EVERY_MS - now));
}

export interface Typist {
  /** Send this as the draft, in the place of the last one; empty: there is none any more. */
  draft(text: string): void;
  /** Somebody begins to type, or has stopped. */
  typing(isTyping: boolean): void;
}

export class Typing {
  #unsent: string | null = null;
  #since = 0;
  #sent = "";
  #isTyping = false;
  #sending: ReturnType<typeof setTimeout> | undefined;
  #resting: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly typist: Typist) {}

  /** A key: the field holds `text` now. Only with `prepares` it is sent. */
  key(text: string, prepares: boolean): void {
    this.#beAtIt();
    if (prepares) this.offer(text);
  }

  /** Send `text` as the draft, unless more comes at once. */
  offer(text: string): void {
    const now = performance.now();
    if (this.#unsent === null) this.#since = now;
    this.#unsent = text.trim();
    clearTimeout(this.#sending);
    const wait = SENTENCE_END.test(this.#unsent) ? 0 : delayMs(now, this.#since);
    this.#sending = setTimeout(() => this.#send(), wait);
  }

  /** The text was sent as a message, or its field is gone: nothing more goes out. */
  end(): void {
    clearTimeout(this.#sending);
    this.#unsent = null;
    this.#sent = "";
    this.#rest();
  }

  /** The text is still there, but is not to be on the server any more. */
  withdraw(): void {
    clearTimeout(this.#sending);
    this.#unsent = "";
    this.#send();
  }

  #send(): void {
    const text = this.#unsent;
    this.#unsent = null;
    if (text === null || text === this.#sent) return;
    this.#sent = text;
    this.typist.draft(text);
  }

  #beAtIt(): void {
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => this.#rest(), REST_MS);
    if (this.#isTyping) return;
    this.#isTyping = true;
    this.typist.typing(true);
  }

  #rest(): void {
    clearTimeout(this.#resting);
    if (!this.#isTyping) return;
    this.#isTyping = false;
    this.typist.typing(false);
  }
}
