// Focus that is never lost: where what has it goes away, its place has it next.

/** An attachment: `heir` gets the focus of whatever goes away inside the element that it is on. */
export function keepsFocus(
  heir: (gone: Node) => HTMLElement | undefined,
): (place: HTMLElement) => () => void {
  return (place) => {
    let last: Node | null = null;
    const came = ({ target }: FocusEvent): void => {
      last = target as Node;
    };
    const changed = new MutationObserver(() => {
      if (!last || last.isConnected) return;
      const gone = last;
      last = null;
      if (isNobodys()) heir(gone)?.focus({ preventScroll: true });
    });
    place.addEventListener("focusin", came);
    changed.observe(place, { childList: true, subtree: true });
    return () => {
      changed.disconnect();
      place.removeEventListener("focusin", came);
    };
  };
}

/**
 * Of an arrow that was among a message's versions: the one that goes the same way in the version that is
 * shown now, or the other where that is the last. `shown` names it by the message that is gone.
 */
export function sameArrow(
  gone: Node,
  shown: (id: string) => string | undefined,
): HTMLElement | undefined {
  if (!(gone instanceof HTMLButtonElement) || !gone.closest(".versions")) return undefined;
  const id = shown(gone.closest<HTMLElement>("[data-id]")?.dataset["id"] ?? "") ?? "";
  const place = document.querySelector(`[data-id="${CSS.escape(id)}"] .versions`);
  const arrows = [...(place?.querySelectorAll<HTMLButtonElement>("button:enabled") ?? [])];
  const name = gone.getAttribute("aria-label");
  return arrows.find((one) => one.getAttribute("aria-label") === name) ?? arrows[0];
}

// A modal dialog has it itself where nothing in it has.
function isNobodys(): boolean {
  const { activeElement } = document;
  return activeElement === document.body || activeElement instanceof HTMLDialogElement;
}
