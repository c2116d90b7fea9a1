import { expect, test } from "vitest";

import type { MessageView } from "../generated/events";
import { isEnough, oldest, shownOf } from "./pages";

const message = (place: number, parent = place - 1): MessageView => ({
  id: `m${place}`,
  conversation_id: "c",
  parent_id: parent < 0 ? null : `m${parent}`,
  role: "user",
  text: "",
  created_at: place,
  client_message_id: null,
  response: null,
});
const run = (start: number, end: number): MessageView[] =>
  Array.from({ length: end - start }, (_, at) => message(start + at));

test("a page of the branch is enough, and so is all of a short one", () => {
  expect(isEnough(run(4900, 5000), "m4999", Infinity)).toBe(true);
  expect(isEnough(run(0, 3), "m2", Infinity)).toBe(true);
  expect(isEnough([], null, Infinity)).toBe(true);
});

test("it is not where the branch begins before it, or most of it is of others", () => {
  expect(isEnough(run(4900, 5000), "m7", Infinity)).toBe(false);
  const others = Array.from({ length: 99 }, (_, at) => message(4900 + at, 3));
  expect(isEnough([...others, message(4999, 4899)], "m4999", Infinity)).toBe(false);
});

test("what was here before is read again", () => {
  expect(isEnough(run(4900, 5000), "m4999", 4800)).toBe(false);
  expect(isEnough(run(4800, 5000), "m4999", 4800)).toBe(true);
  expect(oldest({ m7: message(7), m5: message(5) })).toBe(5);
});

test("the first of a path is not shown where what it follows is not here", () => {
  expect(shownOf(run(5, 8), false).map(({ id }) => id)).toEqual(["m6", "m7"]);
  expect(shownOf(run(5, 8), true)).toHaveLength(3);
  expect(shownOf(run(0, 2), false)).toHaveLength(2);
});
