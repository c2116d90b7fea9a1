// Which key means what. Pure predicates over keyboard events.

/** What is Ctrl elsewhere is written ⌘ there. */
export const isMac = /Mac|iPhone|iPad/.test(navigator.userAgent);

type Key = Pick<
  KeyboardEvent,
  "key" | "shiftKey" | "ctrlKey" | "metaKey" | "altKey" | "isComposing" | "keyCode"
>;

/** Enter sends; with Shift it is a new line, and while an input method composes it picks a word. */
export function sends(event: Key): boolean {
  return event.key === "Enter" && !event.shiftKey && !event.altKey && !composes(event);
}

export function stops(event: Key): boolean {
  return event.key === "Escape" && !event.shiftKey && !composes(event);
}

/** Shift and Escape: to the message field. */
export function goesToField(event: Key): boolean {
  return event.key === "Escape" && event.shiftKey && !composes(event);
}

/** Ctrl or Cmd with Shift and O: a new conversation. */
export function startsNew(event: Key): boolean {
  return event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey);
}

/** Ctrl or Cmd with K: find something, or do it. */
export function opensPalette(event: Key): boolean {
  return event.key.toLowerCase() === "k" && !event.shiftKey && (event.ctrlKey || event.metaKey);
}

/** Ctrl or Cmd with the key that gives a slash, whatever else it needs on this keyboard. */
export function opensKeys(event: Key): boolean {
  return event.key === "/" && (event.ctrlKey || event.metaKey);
}

// Safari ends the composition before the key that ended it; 229 is what it says then.
export function composes(event: Key): boolean {
  return event.isComposing || event.keyCode === 229;
}
