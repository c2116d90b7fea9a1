// A socket and an event stream whose other ends are a test.

export interface Frame {
  readonly type: string;
  readonly at?: number;
  readonly request_id?: string;
}

/** A socket whose other end is the test: it lets in, tells, and cuts wherever it likes. */
export class Wire {
  static all: Wire[] = [];

  static get open(): Wire[] {
    return Wire.all.filter((one) => !one.isOver);
  }

  /** The one that is open now. */
  static get now(): Wire {
    const [only, ...others] = Wire.open;
    if (!only || others.length) throw new Error(`${Wire.open.length} sockets are open`);
    return only;
  }

  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly said: Frame[] = [];
  isOver = false;

  constructor(readonly url: string) {
    Wire.all.push(this);
  }

  send(text: string): void {
    this.said.push(JSON.parse(text) as Frame);
  }

  close(): void {
    this.cut();
  }

  get saidTypes(): string[] {
    return this.said.map(({ type }) => type);
  }

  tell(frame: Frame): void {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }

  greet(): void {
    this.onopen?.();
    this.tell({ type: "welcome" });
  }

  cut(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.onclose?.();
  }
}

/** An event stream in the same way. */
export class Source {
  static readonly CLOSED = 2;
  static all: Source[] = [];

  onmessage: ((event: { data: string }) => void) | null = null;
  onerror: (() => void) | null = null;
  readyState = 0;

  constructor(readonly url: string) {
    Source.all.push(this);
  }

  static get open(): Source[] {
    return Source.all.filter((one) => one.readyState !== Source.CLOSED);
  }

  tell(frame: Frame): void {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }

  close(): void {
    this.readyState = Source.CLOSED;
  }

  refuse(): void {
    this.close();
    this.onerror?.();
  }
}
