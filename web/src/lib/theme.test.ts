import { afterEach, beforeEach, describe, expect, it } from "vitest";

import { applyTheme, chooseTheme, theme } from "./theme";

const SCHEME = "(prefers-color-scheme: ";

function media(): string[] {
  return [...document.querySelectorAll("meta")].map((meta) => meta.media);
}

describe("the theme", () => {
  beforeEach(() => {
    for (const scheme of ["light", "dark"]) {
      const meta = document.createElement("meta");
      meta.name = "theme-color";
      meta.media = `${SCHEME}${scheme})`;
      document.head.append(meta);
    }
  });

  afterEach(() => {
    document.head.replaceChildren();
    chooseTheme("system");
  });

  it("is the system's until somebody chooses, and again after that", () => {
    expect(theme()).toBe("system");

    chooseTheme("dark");
    expect(document.documentElement.dataset["theme"]).toBe("dark");
    expect(media()).toEqual(["not all", "all"]);

    chooseTheme("system");
    expect(document.documentElement.dataset["theme"]).toBeUndefined();
    expect(media()).toEqual([`${SCHEME}light)`, `${SCHEME}dark)`]);
  });

  it("is kept, and nothing that is none", () => {
    chooseTheme("light");
    expect(theme()).toBe("light");

    localStorage.setItem("keepwarm.theme", "sepia");
    applyTheme();
    expect(theme()).toBe("system");
  });
});
