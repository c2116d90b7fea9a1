// How far back a long conversation has to be read, for what is to be shown of it. Pure.
//
// Messages come from the newest backwards, whatever branch they are in. One that was written here is
// newer than the one that it follows, so where a message is here all that was said in its place or
// below it is here too, if the one before it is.

import type { MessageView } from "../generated/events";
import type { Messages } from "./tree";

/** As many of the branch as a reader sees at first, and the one that these follow. */
const ENOUGH = 41;

/** Whether `messages`, oldest first, go back as far as `since` and tell the end of the branch. */
export function isEnough(
  messages: readonly MessageView[],
  leafId: string | null,
  since: number,
): boolean {
  if ((messages[0]?.created_at ?? 0) > since) return false;
  const known = new Map(messages.map((message) => [message.id, message]));
  let id = leafId;
  for (let count = 0; count < ENOUGH && id !== null; count += 1) {
    const message = known.get(id);
    if (!message) return false;
    id = message.parent_id;
  }
  return true;
}

/** When the oldest of them was said; none: at the end of time. */
export const oldest = (messages: Messages): number =>
  Object.values(messages).reduce((least, one) => Math.min(least, one.created_at), Infinity);

/**
 * What is shown of a path whose beginning may not be here yet: without its first message, of which
 * nobody knows what was said in its place.
 */
export const shownOf = (path: MessageView[], isWhole: boolean): MessageView[] =>
  isWhole || path[0]?.parent_id === null ? path : path.slice(1);
