import { describe, expect, it } from "vitest";

import { idsOf, type Item, NO_HEAD, wasChosen, weightOf } from "./library";

const item = (id: string, given: Partial<Item> = {}): Item => ({
  id,
  name: id,
  visibility: "owner",
  version: 1,
  is_archived: false,
  is_editable: true,
  tokens: 10,
  document_ids: [],
  is_warm: false,
  ...given,
});

describe("a head", () => {
  it("leaves out what was not chosen", () => {
    expect(idsOf(NO_HEAD)).toEqual({});
    expect(idsOf({ persona: item("p"), documents: [item("d")] })).toEqual({
      persona_id: "p",
      document_ids: ["d"],
    });
  });

  it("is worth telling of where somebody chose it", () => {
    const made = { persona_id: "persona_default", persona_version: 1, document_ids: [] };

    expect(wasChosen(made)).toBe(false);
    expect(wasChosen({ ...made, persona_id: null })).toBe(false);
    expect(wasChosen({ ...made, persona_id: "p" })).toBe(true);
    expect(wasChosen({ ...made, document_ids: ["d"] })).toBe(true);
  });

  it("weighs what its persona brings, and nothing twice", () => {
    const charter = item("d", { tokens: 100 });
    const persona = item("p", { document_ids: ["d"], is_warm: true });

    const weight = weightOf({ persona, documents: [charter, item("e")] }, [charter]);

    expect(weight).toEqual({ tokens: 120, warm_tokens: 10, isMore: false });
  });

  it("says where something is not counted yet, or not to be seen", () => {
    const uncounted = { persona: null, documents: [item("d", { tokens: null })] };
    const hidden = { persona: item("p", { document_ids: ["d"] }), documents: [] };

    expect(weightOf(uncounted, [])).toEqual({ tokens: 0, warm_tokens: 0, isMore: true });
    expect(weightOf(hidden, []).isMore).toBe(true);
  });
});
