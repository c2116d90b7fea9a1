// How full the model's context is, and what the next turn of a conversation will cost. Pure.

import type { MessageView, Warmth } from "../generated/events";
import { strings } from "../strings/chat";
import { count, warmthWords } from "./format";
import { ended } from "./reduce";

export interface Load {
  /** What the next turn begins with: everything up to the newest answer. */
  readonly tokens: number;
  readonly limit: number;
  /** No answer has told yet; it is as much as the texts look like. */
  readonly isRough: boolean;
}

const CHARACTERS_A_TOKEN = 4;
/** From here on it is said that the end is near. */
const NEARLY = 0.85;

/** Null where nothing was answered yet. What came from elsewhere is guessed by its texts. */
export function loadOf(messages: readonly MessageView[], limit: number | null): Load | null {
  if (!limit) return null;
  const receipt = messages.findLast(({ response }) => response?.receipt)?.response?.receipt;
  if (receipt)
    return { tokens: receipt.prompt_tokens + receipt.output_tokens, limit, isRough: false };
  if (!messages.some(isAnswer)) return null;
  const tokens = messages.reduce((sum, { text }) => sum + roughTokens(text), 0);
  return { tokens, limit, isRough: true };
}

const isAnswer = ({ role, text, response }: MessageView): boolean =>
  role === "assistant" && text !== "" && (!response || ended(response.status));

/** From 0 to 1. */
export const share = ({ tokens, limit }: Load): number => Math.min(1, tokens / limit);

export const isNearlyFull = (load: Load): boolean => share(load) >= NEARLY;

/** What the next turn costs, in a sentence. The last token of an answer is never computed before. */
export function costWords({ tokens }: Load, warmth: Warmth): string {
  const rest = tokens - 1 - warmth.device_tokens;
  if (warmth.state !== "warm" || rest <= 0) return warmthWords(warmth);
  return strings.isPartlyWarm(count(warmth.device_tokens), count(rest));
}

/** Characters that a message may have; the server takes no more. */
export const MOST_CHARACTERS = 1_000_000;

/** About how many tokens a text has; only the tokenizer knows better, and it is on the server. */
export const roughTokens = (text: string): number => Math.ceil(text.length / CHARACTERS_A_TOKEN);

/** Whether a text is so long that it cannot fit, as far as that can be told from here. */
export function surelyTooLong(text: string, load: Load | null, limit: number | null): boolean {
  if (!limit) return false;
  return roughTokens(text) > 1.5 * (limit - (load?.tokens ?? 0));
}
