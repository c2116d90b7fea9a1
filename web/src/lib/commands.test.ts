import { describe, expect, it } from "vitest";

import { fitting } from "./commands";

const named = (...names: string[]) => names.map((name) => ({ id: name, name, run: () => {} }));
const names = (words: string, most = 9) =>
  fitting(named("New conversation", "Über Flüsse", "Rivers, new", "Stop"), words, most).map(
    ({ name }) => name,
  );

describe("a palette", () => {
  it("offers everything in its order while nothing is typed", () => {
    expect(names("")).toEqual(["New conversation", "Über Flüsse", "Rivers, new", "Stop"]);
    expect(names("", 1)).toEqual(["New conversation"]);
  });

  it("finds all words anywhere in a name, without regard to case and accents", () => {
    expect(names("CONV new")).toEqual(["New conversation"]);
    expect(names("flusse")).toEqual(["Über Flüsse"]);
    expect(names("nothing")).toEqual([]);
  });

  it("puts first what begins so", () => {
    expect(fitting(named("A new one", "New"), "new", 9).map(({ name }) => name)).toEqual([
      "New",
      "A new one",
    ]);
  });
});
