import { describe, expect, it } from "vitest";

import type { Problem } from "../generated/events";
import { ApiError } from "./api";
import { told, words } from "./trouble";

const fault = (problem: Partial<Problem>): ApiError =>
  ApiError.of({
    code: "",
    message: "In the server’s words.",
    field: null,
    retry_after_s: null,
    quota: null,
    ...problem,
  });

describe("what went wrong", () => {
  it("is told in words of our own where there are any", () => {
    expect(words(fault({ code: "unavailable", retry_after_s: 0.2 }))).toBe(
      "The engine is away for a moment. Try again in 1.0 s.",
    );
  });

  it("is told by the field at fault where that tells more", () => {
    const refused = { code: "invalid_request", field: "examples[...].user" };

    expect(words(fault(refused))).toBe("A question is empty or too long.");
    expect(words(fault({ code: "conflict", field: "email" }))).toBe(
      "There is an account with this address.",
    );
  });

  it.each([
    ["invalid_request", "The server cannot take this as it is."],
    ["unheard_of", "The server refused this."],
  ])("has the server’s words behind ours where %s may be anything", (code, ours) => {
    const own = "In its own words: “In the server’s words.”";

    expect(words(fault({ code, field: "kept_warm" }))).toBe(`${ours} ${own}`);
    expect(words(fault({ code, message: "" }))).toBe(ours);
  });

  it.each([
    ["unavailable", "again"],
    ["rate_limit_exceeded", "again"],
    ["context_length_exceeded", "summary"],
    ["parent_moved", null],
  ])("%s has its way on", (code, way) => {
    expect(told(fault({ code }), true).way).toBe(way);
  });

  it("has no summary where nothing was said yet", () => {
    expect(told(fault({ code: "context_length_exceeded" }), false).way).toBeNull();
  });

  it.each([
    ["input", "summary"],
    ["leaf_id", "anew"],
    ["text", null],
  ])("where %s has no room: %s", (field, way) => {
    const error = fault({ code: "context_length_exceeded", field });

    expect(told(error, true).way).toBe(way);
    expect(words(error)).not.toContain("In its own words");
  });

  it("names the quota, and when there is room again", () => {
    const quota = { kind: "requests_per_day", limit: 1200, resets_at: 1_780_272_000 };

    const said = words(fault({ code: "quota_exceeded", quota }));

    expect(said).toMatch(
      /^Today’s quota of messages is used up \(1,200 a day\)\. There is room again from .+2026/,
    );
    expect(told(fault({ quota }), true).way).toBeNull();
  });

  it("says bytes as people do", () => {
    const quota = { kind: "stored_bytes", limit: 3 * 2 ** 19, resets_at: null };

    expect(words(fault({ quota }))).toContain("fill the 1.5 MiB");
  });
});
