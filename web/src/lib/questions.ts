// Questions on their way by the socket: each has a name, and the frame that answers it has the same.

import type {
  InwardFrame,
  LeafChoose,
  OutwardFrame,
  ResponseCancel,
  Subscribe,
  TurnContinue,
  TurnCreate,
  TurnEdit,
  TurnRegenerate,
  Unsubscribe,
} from "../generated/events";
import { ApiError } from "./api";
import { randomId } from "./drafts";

type Unnumbered<T> = Omit<T, "request_id">;
export type Question =
  | Unnumbered<Subscribe>
  | Unnumbered<Unsubscribe>
  | Unnumbered<TurnCreate>
  | Unnumbered<TurnEdit>
  | Unnumbered<TurnRegenerate>
  | Unnumbered<TurnContinue>
  | Unnumbered<LeafChoose>
  | Unnumbered<ResponseCancel>;

interface Waiting {
  resolve(frame: OutwardFrame): void;
  reject(error: ApiError): void;
}

export class Questions {
  readonly #waiting = new Map<string, Waiting>();

  /** Resolves with the answering frame. Rejects with `ApiError`. */
  ask(question: Question, send: (frame: InwardFrame) => void): Promise<OutwardFrame> {
    const request_id = randomId();
    return new Promise((resolve, reject) => {
      this.#waiting.set(request_id, { resolve, reject });
      send({ ...question, request_id } as InwardFrame);
    });
  }

  /** A frame that may be an answer. */
  heard(frame: OutwardFrame): void {
    const id = "request_id" in frame ? frame.request_id : null;
    const waiting = id === null ? undefined : this.#waiting.get(id);
    if (id !== null) this.#waiting.delete(id);
    if (frame.type === "error") waiting?.reject(ApiError.of(frame.error));
    else waiting?.resolve(frame);
  }

  /** Nothing that was asked will be answered any more. */
  abandon(error: ApiError): void {
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }
}
