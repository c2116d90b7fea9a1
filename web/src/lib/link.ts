// The page's one line to the server: a socket that comes back by itself, or the stream where the
// upgrade is refused. Knows frames and their answers, nothing of what they mean.
//
// connecting -> online -> offline -> connecting ...   after each welcome the watch is taken up anew
//            -> online by the stream                  after two refused upgrades of a server that
//                                                     answers; the socket is tried again each minute
//            -> refused                               the server says that this is too much; it is asked
//                                                     again each minute, or when somebody wants it

import {
  PROTOCOL,
  type Cursor,
  type Draft,
  type InwardFrame,
  type OutwardFrame,
  type Presence,
} from "../generated/events";
import { ApiError, api } from "./api";
import { type Question, Questions } from "./questions";
import { backOffMs, REFUSALS, socketUrl, TRY_AGAIN_MS } from "./socket";
import { Stream } from "./stream";
import { strings } from "../strings/chat";

export type LinkStatus =
  | "connecting"
  | "online"
  | "stream"
  /** The server is not reached, or says that it goes and comes back. */
  | "offline"
  | "restarting"
  /** The server is there and lets nobody in: the fault says why. */
  | "refused"
  | "outdated";

export const isUp = (status: LinkStatus): boolean => status === "online" || status === "stream";

/** What is looked at now, and how far it was read; asked anew at every connection. */
export interface Watch {
  readonly conversationId: string;
  cursors(): Cursor[];
  /** Connected again: what happened meanwhile may have been missed. */
  returned(): void;
}

export interface Listener {
  hear(frame: OutwardFrame): void;
  /** `fault`: why, where the server refused. */
  status(status: LinkStatus, fault: ApiError | null): void;
  signedOut(): void;
}

const SIGNED_OUT = 4401;
const RESTARTING = 1012;
const PATIENT_ATTEMPTS = 12;
const LOST = () => new ApiError("unreached", strings.lost);

export class Link {
  #socket: WebSocket | null = null;
  #stream: Stream | null = null;
  #watch: Watch | null = null;
  #status: LinkStatus = "connecting";
  #closed = false;
  #attempt = 0;
  #refused = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #unheard: Draft | null = null;
  readonly #questions = new Questions();
  #waitingForUp: (() => void)[] = [];
  readonly #listener: Listener;

  constructor(listener: Listener) {
    this.#listener = listener;
    addEventListener("online", this.#hurry);
    document.addEventListener("visibilitychange", this.#hurry);
    document.addEventListener("visibilitychange", this.#tellIfSeen);
    this.#connect();
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    removeEventListener("online", this.#hurry);
    document.removeEventListener("visibilitychange", this.#hurry);
    document.removeEventListener("visibilitychange", this.#tellIfSeen);
    this.#stream?.close();
    this.#socket?.close();
    this.#questions.abandon(LOST());
    this.#wake();
  }

  /** Without waiting any longer. */
  retry(): void {
    if (!this.isUp && this.#status !== "outdated") this.#connect();
  }

  get isUp(): boolean {
    return isUp(this.#status);
  }

  /** Resolves with the answering frame. Rejects with `ApiError`; unreached ones may be repeated. */
  async ask(question: Question): Promise<OutwardFrame> {
    if (question.type.startsWith("turn.")) this.#unheard = null;
    if (this.#status === "online")
      return this.#questions.ask(question, (frame) => this.#say(frame));
    if (!this.#stream) throw LOST();
    const answer = await this.#stream.ask(question);
    this.#listener.hear(answer);
    return answer;
  }

  /** A hint, which nobody answers. Where there is no connection only the last draft waits for it. */
  tell(hint: Draft | Presence): void {
    if (this.#status === "online") this.#say(hint);
    else if (this.#stream) this.#stream.tell(hint);
    else if (hint.type === "draft") this.#unheard = hint;
  }

  /** Like `ask`, but asks again after a lost connection: for what the server does only once. */
  async insist(question: Question): Promise<OutwardFrame> {
    for (;;) {
      try {
        return await this.ask(question);
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 0 || this.#closed) throw error;
        await this.#up();
      }
    }
  }

  #up(): Promise<void> {
    return this.isUp ? pause(1000) : new Promise((resolve) => this.#waitingForUp.push(resolve));
  }

  /** Watch this and nothing else; called again, resume at the cursors. */
  async watch(watch: Watch | null): Promise<void> {
    const before = this.#watch;
    this.#watch = watch;
    if (before && before.conversationId !== watch?.conversationId) {
      await this.ask({ type: "unsubscribe", conversation_id: before.conversationId }).catch(ignore);
    }
    if (watch && watch === this.#watch) await this.#subscribe(watch);
  }

  async #subscribe(watch: Watch): Promise<void> {
    const { conversationId: conversation_id } = watch;
    const cursors = watch.cursors();
    await this.ask({ type: "subscribe", conversation_id, cursors }).catch(ignore);
    // To the server a page that asks is a page that is seen.
    if (document.hidden) this.#tellIfSeen();
  }

  readonly #tellIfSeen = (): void => {
    if (!this.#watch) return;
    const state = document.hidden ? "hidden" : "open";
    this.tell({ type: "presence", conversation_id: this.#watch.conversationId, state });
  };

  // ---------------------------------------------------------------- the socket's life

  #connect(): void {
    clearTimeout(this.#timer);
    if (this.#closed || this.#socket) return;
    const socket = new WebSocket(socketUrl());
    let welcomed = false;
    this.#socket = socket;
    socket.onopen = () => socket.send(JSON.stringify({ type: "hello", protocol: PROTOCOL }));
    socket.onmessage = ({ data }) => {
      const frame = JSON.parse(String(data)) as OutwardFrame;
      if (frame.type === "welcome") {
        welcomed = true;
        this.#welcomed();
      } else this.#heard(frame);
    };
    socket.onclose = ({ code }) => {
      this.#socket = null;
      this.#questions.abandon(LOST());
      if (!this.#closed) void this.#ended(code, welcomed);
    };
  }

  #welcomed(): void {
    this.#attempt = 0;
    this.#refused = 0;
    this.#stream?.close();
    this.#stream = null;
    this.#become("online");
    this.#resume();
    this.#catchUp();
  }

  #catchUp(): void {
    const draft = this.#unheard;
    this.#unheard = null;
    if (draft) this.tell(draft);
  }

  #resume(): void {
    if (!this.#watch) return;
    void this.#subscribe(this.#watch);
    this.#watch.returned();
  }

  async #ended(code: number, welcomed: boolean): Promise<void> {
    if (code === SIGNED_OUT) return this.#listener.signedOut();
    if (this.#status === "outdated") return;
    if (welcomed) this.#become(code === RESTARTING ? "restarting" : "offline");
    else await this.#probe();
    const wait = this.#stream ? TRY_AGAIN_MS : backOffMs(this.#attempt, Math.random());
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  // A browser does not tell why an upgrade failed: ask by plain HTTP who is at fault.
  async #probe(): Promise<void> {
    try {
      await api.account();
      this.#refused += 1;
      if (this.#refused >= REFUSALS) this.#fallBack();
    } catch (error) {
      // Without a login the page leaves this link by itself.
      if (error instanceof ApiError && error.status === 401) return;
      if (isTooMuch(error)) this.#become("refused", error);
      else if (!this.#stream) this.#become(this.#isComingBack(error) ? "restarting" : "offline");
    }
  }

  // A server that said so is believed for a while; and it says so itself while it starts.
  #isComingBack(error: unknown): boolean {
    if (error instanceof ApiError && error.status === 503) return true;
    return this.#status === "restarting" && this.#attempt < PATIENT_ATTEMPTS;
  }

  #fallBack(): void {
    if (this.#stream || this.#closed) return;
    this.#stream = new Stream(
      (frame) => this.#heard(frame),
      () => this.#streamOpened(),
      (error) => this.#streamLost(error),
    );
  }

  #streamOpened(): void {
    this.#become("stream");
    this.#resume();
    this.#catchUp();
  }

  #streamLost(error: unknown): void {
    this.#stream?.close();
    this.#stream = null;
    if (error instanceof ApiError && error.isOfOldPage) return this.#become("outdated");
    if (isTooMuch(error)) {
      this.#become("refused", error);
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#connect(), TRY_AGAIN_MS);
      return;
    }
    this.#become("offline");
    this.#attempt = 0;
    this.#connect();
  }

  #become(status: LinkStatus, fault: ApiError | null = null): void {
    if (status === this.#status) return;
    this.#status = status;
    this.#listener.status(status, fault);
    if (this.isUp) this.#wake();
  }

  #wake(): void {
    for (const resolve of this.#waitingForUp) resolve();
    this.#waitingForUp = [];
  }

  readonly #hurry = (): void => {
    if (!document.hidden) this.retry();
  };

  // ---------------------------------------------------------------- frames

  #say(frame: InwardFrame): void {
    this.#socket?.send(JSON.stringify(frame));
  }

  #heard(frame: OutwardFrame): void {
    this.#questions.heard(frame);
    if (frame.type !== "error") this.#listener.hear(frame);
    else if (frame.error.code === "unsupported_protocol") this.#become("outdated");
  }
}

const isTooMuch = (error: unknown): error is ApiError =>
  error instanceof ApiError && error.status === 429;

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// A refused subscription shows in the conversation itself, which is loaded at the same time.
function ignore(): void {}
