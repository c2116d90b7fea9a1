import fc from "fast-check";
import { describe, expect, it } from "vitest";

import type { MessageView } from "../generated/events";
import { alternatives, children, path, tip } from "./tree";

function message(index: number, parent: number | null): MessageView {
  return {
    id: id(index),
    conversation_id: "conv_1",
    parent_id: parent === null ? null : id(parent),
    role: "user",
    text: "",
    created_at: Math.floor(index / 3),
    client_message_id: null,
    response: null,
  };
}

const id = (index: number): string => `msg_${String(index).padStart(4, "0")}`;
const stored = (messages: readonly MessageView[]) =>
  Object.fromEntries(messages.map((one) => [one.id, one]));

/** A tree of up to 40 messages, and the same messages in another order. */
const trees = fc
  .array(fc.nat(), { minLength: 1, maxLength: 40 })
  .map((parents) => parents.map((nat, i) => message(i, i === 0 ? null : nat % i)))
  .chain((messages) =>
    fc.tuple(fc.constant(messages), fc.shuffledSubarray(messages, { minLength: messages.length })),
  );

describe("the tree", () => {
  it("is read the same in any order of its messages", () => {
    fc.assert(
      fc.property(trees, ([messages, shuffled]) => {
        for (const { id: leaf } of messages) {
          expect(path(stored(shuffled), leaf)).toEqual(path(stored(messages), leaf));
          expect(tip(stored(shuffled), leaf)).toBe(tip(stored(messages), leaf));
        }
        expect(alternatives(stored(shuffled))).toEqual(alternatives(stored(messages)));
      }),
    );
  });

  it("leads from the root to the leaf, each message the child of the one before", () => {
    fc.assert(
      fc.property(trees, ([, messages]) => {
        for (const { id: leaf } of messages) {
          const found = path(stored(messages), leaf);

          expect(found[0]?.parent_id).toBeNull();
          expect(found.at(-1)?.id).toBe(leaf);
          found.slice(1).forEach((one, i) => expect(one.parent_id).toBe(found[i]?.id));
        }
      }),
    );
  });

  it("names the alternatives of a message where there are any, itself among them", () => {
    fc.assert(
      fc.property(trees, ([, messages]) => {
        const found = alternatives(stored(messages));
        for (const { id, parent_id } of messages) {
          const beside = children(stored(messages), parent_id).map((one) => one.id);

          expect(found.get(id) ?? [id]).toEqual(beside);
        }
      }),
    );
  });

  it("has an end below every message", () => {
    fc.assert(
      fc.property(trees, ([, messages]) => {
        for (const { id: from } of messages) {
          const end = tip(stored(messages), from);

          expect(children(stored(messages), end)).toEqual([]);
          expect(path(stored(messages), end).map((one) => one.id)).toContain(from);
        }
      }),
    );
  });

  it("is empty for a leaf that is not known, and does not turn in circles", () => {
    const circle = stored([message(1, 2), message(2, 1)]);

    expect(path(circle, id(1)).length).toBeLessThanOrEqual(2);
    expect(path({}, id(1))).toEqual([]);
    expect(tip(circle, id(1))).toBe(id(1));
    expect(tip({}, null)).toBeNull();
  });
});
