import { describe, expect, it } from "vitest";

import { details } from "./audit";

describe("what the audit log keeps beside an act", () => {
  it.each([
    [{}, ""],
    [{ role: "auditor" }, "role: Auditor"],
    [{ key_id: "key_1", scopes: ["read", "write"] }, "key: key_1, for: reading, asking"],
    [{ kind: "requests_per_day", allowed: 7 }, "quota: Turns a day, allowed: 7"],
    [{ kind: "stored_bytes", allowed: 5 * 2 ** 20 }, "quota: Stored, in MiB, allowed: 5"],
    [{ kind: "sockets", allowed: null }, "quota: Open connections, allowed: no limit"],
    [{ what: "prefixes" }, "figures: prefix tree"],
    [{ archived: true }, "archived: yes"],
    [{ unheard_of: "as it is" }, "unheard_of: as it is"],
  ])("is in words: %o", (told, words) => {
    expect(details(told)).toBe(words);
  });
});
