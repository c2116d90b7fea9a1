// What went wrong, in words for whoever is concerned, and what helps. Pure.

import type { QuotaFault } from "../generated/events";
import { strings } from "../strings/faults";
import type { ApiError } from "./api";
import { count, duration, moment, size } from "./format";

type Named<T> = Readonly<Record<string, T>>;

/**
 * `again`: the same once more may succeed; `summary`: a new conversation goes on from this one; `anew`:
 * not even behind a summary is there room, but perhaps with nothing before it.
 */
export type Way = "again" | "summary" | "anew" | null;

export interface Told {
  readonly words: string;
  readonly way: Way;
}

/** Codes after which the same may be asked again, at once or after a while. */
const PASSING = new Set(["unreached", "unavailable", "rate_limit_exceeded", "server_error"]);

/** Of many causes, which only a page of another version could be at fault for: the server says which. */
const WIDE = "invalid_request";

/** `isBegun`: there is something before it that a summary could be made of. */
export function told(error: ApiError, isBegun: boolean): Told {
  return { words: words(error), way: way(error, isBegun) };
}

export function words(error: ApiError): string {
  if (error.quota) return quotaWords(error.quota);
  const own = ownWords(error);
  return error.retryAfterS === null
    ? own
    : `${own} ${strings.againIn(duration(Math.max(1, error.retryAfterS)))}`;
}

/** The page's; and behind them the server's, which are English, where they tell more. */
function ownWords({ code, field, message }: ApiError): string {
  const named = (strings.fields as Named<Named<string>>)[code]?.[lastName(field)];
  if (named !== undefined) return named;
  const own = (strings.codes as Named<string>)[code];
  if (own !== undefined && code !== WIDE) return own;
  return [own ?? strings.otherwise, ...(message ? [strings.inItsWords(message)] : [])].join(" ");
}

/** Of `examples[0].user` it is `user`. */
function lastName(field: string | null): string {
  return (
    field
      ?.replace(/\[[^\]]*\]/g, "")
      .split(".")
      .at(-1) ?? ""
  );
}

function way({ code, field, quota }: ApiError, isBegun: boolean): Way {
  if (code === "context_length_exceeded") return isBegun ? roomier(field) : null;
  return PASSING.has(code) || quota?.kind === "generations" ? "again" : null;
}

/** By what the server says has no room: a message alone, one behind a summary, or all together. */
function roomier(field: string | null): Way {
  if (field === "text") return null;
  return field === "leaf_id" ? "anew" : "summary";
}

function quotaWords({ kind, limit, resets_at }: QuotaFault): string {
  const allowed = kind.endsWith("_bytes") ? size(limit) : count(limit);
  const { named, otherwise } = strings.quotas;
  const own = (named as Named<(allowed: string) => string>)[kind] ?? otherwise;
  return resets_at === null
    ? own(allowed)
    : `${own(allowed)} ${strings.quotas.until(moment(resets_at))}`;
}
