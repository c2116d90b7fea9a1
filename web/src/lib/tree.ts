// Messages are a tree; the page shows the path from the root to one leaf. Pure, and independent of
// the order in which messages came: siblings are ordered by the time in their ids.

import type { MessageView } from "../generated/events";

export type Messages = Readonly<Record<string, MessageView>>;

/** Root to `leafId`; what is cut off by a missing parent or a cycle is left out. */
export function path(messages: Messages, leafId: string | null): MessageView[] {
  const found: MessageView[] = [];
  const seen = new Set<string>();
  for (let id = leafId; id !== null && !seen.has(id);) {
    const message = messages[id];
    if (!message) break;
    seen.add(id);
    found.push(message);
    id = message.parent_id;
  }
  return found.reverse();
}

/** Children of `parentId`, oldest first. */
export function children(messages: Messages, parentId: string | null): MessageView[] {
  return Object.values(messages)
    .filter((message) => message.parent_id === parentId)
    .sort(byAge);
}

/** For each message that has alternatives, these and itself, oldest first. */
export function alternatives(messages: Messages): ReadonlyMap<string, readonly string[]> {
  const found = new Map<string, string[]>();
  const beside = new Map<string | null, string[]>();
  for (const { id, parent_id } of Object.values(messages).sort(byAge)) {
    const ids = beside.get(parent_id) ?? [];
    beside.set(parent_id, ids);
    ids.push(id);
  }
  for (const ids of beside.values()) {
    if (ids.length > 1) for (const id of ids) found.set(id, ids);
  }
  return found;
}

/** From a leaf pointer down to the newest end of its branch: an answer may have begun below it. */
export function tip(messages: Messages, leafId: string | null): string | null {
  const newest = newestChildren(messages);
  const seen = new Set<string>();
  let id = leafId;
  for (;;) {
    const child = newest.get(id);
    if (child === undefined || seen.has(child)) return id;
    seen.add(child);
    id = child;
  }
}

function newestChildren(messages: Messages): Map<string | null, string> {
  const newest = new Map<string | null, string>();
  for (const { id, parent_id } of Object.values(messages).sort(byAge)) newest.set(parent_id, id);
  return newest;
}

function byAge(a: MessageView, b: MessageView): number {
  return a.created_at - b.created_at || (a.id < b.id ? -1 : 1);
}
