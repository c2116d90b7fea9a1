// Focus that is never lost: where what has it goes away, its place has it next.

/** An attachment: `heir` gets the focus of whatever goes away inside the element that it is on. */
export function keepsFocus(
  heir: () => HTMLElement | undefined,
): (place: HTMLElement) => () => void {
  return (place) => {
    let last: Node | null = null;
    const came = ({ target }: FocusEvent): void => {
      last = target as Node;
    };
    const changed = new MutationObserver(() => {
      if (!last || last.isConnected) return;
      last = null;
      if (isNobodys()) heir()?.focus({ preventScroll: true });
    });
    place.addEventListener("focusin", came);
    changed.observe(place, { childList: true, subtree: true });
    return () => {
      changed.disconnect();
      place.removeEventListener("focusin", came);
    };
  };
}

// A modal dialog has it itself where nothing in it has.
function isNobodys(): boolean {
  const { activeElement } = document;
  return activeElement === document.body || activeElement instanceof HTMLDialogElement;
}
