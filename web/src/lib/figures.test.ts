import { expect, it } from "vitest";

import { ordinal } from "./figures";

it("a token has the number that people count it by, as it has in a receipt", () => {
  expect([ordinal(0), ordinal(40), ordinal(null)]).toEqual(["1", "41", "–"]);
});
