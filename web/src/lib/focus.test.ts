import { afterEach, beforeEach, describe, expect, it } from "vitest";

import { keepsFocus } from "./focus";

describe("the focus of what goes away", () => {
  let place: HTMLElement;
  let inner: HTMLButtonElement;
  let outer: HTMLButtonElement;
  let end: () => void;

  beforeEach(() => {
    document.body.innerHTML =
      '<main tabindex="-1"><p><button></button></p></main><button></button>';
    place = document.querySelector("main") as HTMLElement;
    [inner, outer] = [...document.querySelectorAll("button")] as [
      HTMLButtonElement,
      HTMLButtonElement,
    ];
    end = keepsFocus(() => place)(place);
  });
  afterEach(() => end());

  const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve));

  it("comes to its place", async () => {
    inner.focus();
    inner.parentElement?.remove();
    await settled();

    expect(document.activeElement).toBe(place);
  });

  it("stays where somebody has gone meanwhile", async () => {
    inner.focus();
    outer.focus();
    inner.remove();
    await settled();

    expect(document.activeElement).toBe(outer);
  });

  it("comes there too where it was lost by being disabled first", async () => {
    inner.focus();
    inner.disabled = true;
    inner.blur();
    inner.remove();
    await settled();

    expect(document.activeElement).toBe(place);
  });

  it("is left alone once the place is", async () => {
    end();
    inner.focus();
    inner.remove();
    await settled();

    expect(document.activeElement).toBe(document.body);
  });
});
