import { afterEach, beforeEach, describe, expect, it } from "vitest";

import { keepsFocus, sameArrow } from "./focus";

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

describe("the focus of an arrow between versions", () => {
  const article = (id: string, at: "first" | "last"): string =>
    `<article data-id="${id}"><span class="versions">
      <button aria-label="before" ${at === "first" ? "disabled" : ""}></button>
      <button aria-label="after" ${at === "last" ? "disabled" : ""}></button></span></article>`;

  it.each([
    ["first", "after"],
    ["last", "before"],
  ] as const)("goes to one that is enabled in the %s version", (at, name) => {
    document.body.innerHTML = article("a", "last");
    const gone = document.querySelector("button") as HTMLButtonElement;
    gone.closest("article")?.remove();
    document.body.innerHTML = article("b", at);

    const heir = sameArrow(gone, (id) => (id === "a" ? "b" : undefined));

    expect(heir?.getAttribute("aria-label")).toBe(name);
  });

  it("goes to none from any other button", () => {
    document.body.innerHTML = article("b", "first");
    expect(sameArrow(document.createElement("button"), () => "b")).toBeUndefined();
  });
});
