// How an answer ended, as a screen reader says it. Pure.

import { strings } from "../strings/chat";
import type { MessageView } from "./reduce";

/** Of the response of this name; nothing where another conversation is looked at meanwhile. */
export function endWords(messages: readonly MessageView[], responseId: string | null): string {
  const response = messages.find((one) => one.response?.id === responseId)?.response;
  switch (response?.status) {
    case "completed":
      return strings.answerComplete;
    case "cancelled":
      return strings.answerStopped;
    case "failed":
      return strings.answerFailed;
    case "incomplete":
      return cutWords(response.incomplete_reason, {
        interrupted: strings.answerInterrupted,
        full: strings.answerFilled,
        otherwise: strings.answerCutOff,
      });
    default:
      return "";
  }
}

/** By what cut an answer off. */
export interface Cuts {
  readonly interrupted: string;
  /** The model can read no more. */
  readonly full: string;
  readonly otherwise: string;
}

export function cutWords(reason: string | null | undefined, words: Cuts): string {
  if (reason === "interrupted") return words.interrupted;
  return reason === "context_full" ? words.full : words.otherwise;
}
