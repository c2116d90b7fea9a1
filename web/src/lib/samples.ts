// Figures as they come: by a socket, where they are asked for anew at every connection, or by the event
// stream where the upgrade is refused.
//
// connecting -> told -> lost -> connecting ...
//            -> told by the stream    after two refused upgrades of a server that answers; the socket is
//                                     tried again each minute, and its first sample ends the stream
//            -> refused               the server says that this is too much, of the stream too; the socket
//                                     is tried again each minute, or when somebody wants it
//
// Wherever an account sees no figures any more, a look at it says so, and the page closes this.

import type { Figures } from "../generated/admin";
import { ApiError, fetched } from "./api";
import { type FiguresWatch, type Hello, type OutwardFrame, PROTOCOL } from "../generated/events";
import { backOffMs, REFUSALS, socketUrl, TRY_AGAIN_MS } from "./socket";

export interface Hearer {
  hear(sample: Figures): void;
  /** Nothing comes just now; it is tried again. */
  lost(): void;
  /** The server is there and lets no more in: why. It is tried again later. */
  refused(why: ApiError): void;
  /** Asks the server who this is by now; whether it answered. */
  look(): Promise<boolean>;
}

const WATCH: FiguresWatch = { type: "figures.watch", request_id: "figures" };
const STREAM = "/api/admin/figures/events";

export class Samples {
  #socket: WebSocket | null = null;
  #stream: EventSource | null = null;
  #isClosed = false;
  #attempt = 0;
  #refused = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #hearer: Hearer;

  constructor(hearer: Hearer) {
    this.#hearer = hearer;
    addEventListener("online", this.#hurry);
    document.addEventListener("visibilitychange", this.#hurry);
    this.#connect();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    removeEventListener("online", this.#hurry);
    document.removeEventListener("visibilitychange", this.#hurry);
    this.#endStream();
    this.#socket?.close();
  }

  /** Without waiting any longer. */
  retry(): void {
    this.#connect();
  }

  // ---------------------------------------------------------------- the socket

  #connect(): void {
    if (this.#isClosed || this.#socket) return;
    clearTimeout(this.#timer);
    const socket = new WebSocket(socketUrl());
    let isWelcome = false;
    this.#socket = socket;
    socket.onopen = () => this.#say({ type: "hello", protocol: PROTOCOL });
    socket.onmessage = ({ data }) => {
      const frame = JSON.parse(String(data)) as OutwardFrame;
      isWelcome ||= frame.type === "welcome";
      if (!this.#isClosed) this.#heard(frame);
    };
    socket.onclose = () => {
      this.#socket = null;
      if (!this.#isClosed) void this.#ended(isWelcome);
    };
  }

  #say(frame: Hello | FiguresWatch): void {
    this.#socket?.send(JSON.stringify(frame));
  }

  #heard(frame: OutwardFrame): void {
    if (frame.type === "welcome") {
      this.#refused = 0;
      this.#say(WATCH);
    } else if (frame.type === "figures") {
      this.#endStream();
      this.#told(frame);
    } else if (frame.type === "error" && frame.request_id === WATCH.request_id) {
      this.#lost();
      void this.#hearer.look();
      this.#later(() => this.#say(WATCH));
    }
  }

  async #ended(wasWelcome: boolean): Promise<void> {
    clearTimeout(this.#timer);
    this.#lost();
    if (wasWelcome) void this.#hearer.look();
    // A browser does not tell why an upgrade failed: ask by plain HTTP who is at fault.
    else if (await this.#hearer.look()) this.#blocked();
    this.#later(() => this.#connect());
  }

  #blocked(): void {
    this.#refused += 1;
    if (this.#refused >= REFUSALS) this.#fallBack();
  }

  // ---------------------------------------------------------------- the stream

  #fallBack(): void {
    if (this.#stream || this.#isClosed) return;
    const stream = new EventSource(STREAM);
    this.#stream = stream;
    stream.onmessage = ({ data }: MessageEvent<string>) => this.#told(JSON.parse(data) as Figures);
    stream.onerror = () => {
      this.#hearer.lost();
      void this.#hearer.look();
      // The browser opens it again by itself, but for one that was refused.
      if (stream.readyState !== EventSource.CLOSED) return;
      this.#endStream();
      void this.#asked();
    };
  }

  // Nor does it tell why that was: what is too much for the stream was too much for the socket too.
  async #asked(): Promise<void> {
    const hush = new AbortController();
    const init = { signal: hush.signal, headers: { accept: "text/event-stream" } };
    const why: unknown = await fetched(STREAM, init).catch((error: unknown) => error);
    hush.abort();
    if (this.#isClosed) return;
    const isTooMuch = why instanceof ApiError && why.status === 429;
    if (isTooMuch) this.#hearer.refused(why);
    this.#later(() => this.#connect(), isTooMuch ? TRY_AGAIN_MS : undefined);
  }

  #endStream(): void {
    this.#stream?.close();
    this.#stream = null;
  }

  // ---------------------------------------------------------------- both

  #told(sample: Figures): void {
    this.#attempt = 0;
    this.#hearer.hear(sample);
  }

  #lost(): void {
    if (!this.#stream) this.#hearer.lost();
  }

  #later(act: () => void, least?: number): void {
    clearTimeout(this.#timer);
    if (this.#isClosed) return;
    const wait = least ?? (this.#stream ? TRY_AGAIN_MS : backOffMs(this.#attempt, Math.random()));
    this.#attempt += 1;
    this.#timer = setTimeout(act, wait);
  }

  readonly #hurry = (): void => {
    if (!document.hidden && !this.#stream) this.#connect();
  };
}
