// What every page's socket goes by: where it leads, and when it is tried again.

/** So many upgrades refused by a server that answers otherwise: websockets are blocked on the way. */
export const REFUSALS = 2;
/** Between two tries while the event stream serves. */
export const TRY_AGAIN_MS = 60_000;

export const socketUrl = (): string => `${location.origin.replace(/^http/, "ws")}/ws`;

/** Before attempt `n` (0, 1, 2 ...): doubling up to 10 s, and spread so that not all come at once. */
export function backOffMs(attempt: number, random: number): number {
  return Math.min(10_000, 500 * 2 ** attempt) * (0.5 + random / 2);
}
