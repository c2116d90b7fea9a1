import fc from "fast-check";
import { describe, expect, it } from "vitest";

import type {
  ConversationView,
  Event,
  MessageView,
  OutwardFrame,
  ResponseStatus,
  ResponseView,
  Snapshot,
} from "../generated/events";
import { cursors, EMPTY, leafOf, live, type Loaded, reduce, type State, textOf } from "./reduce";

const CONVERSATION: ConversationView = {
  id: "conv_1",
  title: "",
  persona_id: null,
  persona_version: null,
  document_ids: [],
  continues_id: null,
  leaf_id: "msg_2",
  archived: false,
  pinned: false,
  kept_warm: false,
  created_at: 0,
  updated_at: 0,
};

function response(status: ResponseStatus): ResponseView {
  return {
    id: "resp_1",
    conversation_id: "conv_1",
    message_id: "msg_2",
    parent_id: "msg_1",
    status,
    model: "m",
    created_at: 2,
    completed_at: null,
    incomplete_reason: null,
    error: null,
    usage: null,
    receipt: null,
  };
}

function message(id: string, parent: string | null, more: Partial<MessageView> = {}): MessageView {
  return {
    id,
    conversation_id: "conv_1",
    parent_id: parent,
    role: "user",
    text: "",
    created_at: 1,
    client_message_id: null,
    response: null,
    ...more,
  };
}

/** The whole log of a response that writes `words`, as frames of one epoch. */
function log(words: readonly string[], epoch = "e1"): Event[] {
  const said: { type: Event["event"]["type"]; more: object }[] = [
    { type: "response.created", more: { response: response("in_progress") } },
    { type: "response.in_progress", more: { response: response("in_progress") } },
    { type: "response.output_item.added", more: { item_id: "msg_2" } },
    { type: "response.content_part.added", more: { item_id: "msg_2" } },
    ...words.map((delta) => ({
      type: "response.output_text.delta" as const,
      more: { item_id: "msg_2", delta, logprobs: [] },
    })),
    {
      type: "response.ended",
      more: { response: response("completed"), text: words.join("") },
    },
  ];
  return said.map(({ type, more }, sequence_number) => ({
    type: "event",
    conversation_id: "conv_1",
    response_id: "resp_1",
    epoch,
    event: { type, sequence_number, ...more } as Event["event"],
  }));
}

/** What the server would send for "everything up to `after`" in one piece. */
function snapshot(events: readonly Event[], after: number): Snapshot {
  const told = events.slice(0, after + 1).map(({ event }) => event);
  const last = told.at(-1);
  return {
    type: "snapshot",
    response: response(last?.type === "response.ended" ? "completed" : "in_progress"),
    epoch: events[0]?.epoch ?? "",
    text: told.map((event) => ("delta" in event ? event.delta : "")).join(""),
    sequence_number: after,
  };
}

const loaded = (...messages: MessageView[]): Loaded => ({
  type: "loaded",
  conversation: CONVERSATION,
  messages,
});

const opened = reduce(EMPTY, loaded(message("msg_1", null)));
const play = (state: State, frames: readonly (OutwardFrame | Loaded)[]): State =>
  frames.reduce(reduce, state);
const answer = (state: State): string => {
  const found = state.messages["msg_2"];
  return found ? textOf(state, found) : "";
};

const words = fc.array(fc.string({ minLength: 1, maxLength: 8 }), { maxLength: 30 });

describe("a response's log", () => {
  it("gives the whole text, whatever is sent twice", () => {
    fc.assert(
      fc.property(words, fc.infiniteStream(fc.nat(3)), (spoken, again) => {
        const events = log(spoken);
        const frames = events.flatMap((event, i) => {
          const back = again.next().value as number;
          return [event, ...events.slice(Math.max(0, i - back), i + 1)];
        });

        const state = play(opened, frames);

        expect(answer(state)).toBe(spoken.join(""));
        expect(state.gaps).toEqual([]);
        expect(live(state)).toEqual([]);
      }),
    );
  });

  it("is never read across a gap, and goes on whole from the cursor", () => {
    fc.assert(
      fc.property(words, fc.nat(), fc.nat(), (spoken, from, length) => {
        const events = log(spoken);
        const start = 1 + (from % (events.length - 1));
        const lost = 1 + (length % 5);
        const heard = [...events.slice(0, start), ...events.slice(start + lost)];

        const broken = play(opened, heard);
        const [cursor] = cursors(broken);
        const resumed = play(broken, events.slice((cursor?.after ?? 0) + 1));

        if (heard.length > start) expect(broken.gaps).toEqual(["resp_1"]);
        expect(cursor).toMatchObject({ after: start - 1, epoch: "e1" });
        expect(answer(resumed)).toBe(spoken.join(""));
        expect(resumed.gaps).toEqual([]);
      }),
    );
  });

  it("goes on from a snapshot taken anywhere", () => {
    fc.assert(
      fc.property(words, fc.nat(), fc.nat(), (spoken, read, at) => {
        const events = log(spoken);
        const seen = read % events.length;
        const after = Math.max(seen, at % events.length);

        const state = play(opened, [
          ...events.slice(0, seen),
          snapshot(events, after),
          ...events.slice(after + 1),
        ]);

        expect(answer(state)).toBe(spoken.join(""));
        expect(state.gaps).toEqual([]);
      }),
    );
  });

  it("of another epoch is given up and asked for as a snapshot", () => {
    const before = play(opened, log(["a", "b", "c"], "old").slice(0, 6));
    const events = log(["a", "b"], "new");

    const state = play(before, [events[5] as Event]);

    expect(state.gaps).toEqual(["resp_1"]);
    expect(cursors(state)).toEqual([{ response_id: "resp_1", after: -1, epoch: "" }]);
    expect(answer(play(state, [snapshot(events, 5)]))).toBe("ab");
  });

  it("replaces what the client held where the server saved less", () => {
    const before = play(opened, log(["one ", "two ", "three"], "old").slice(0, 7));

    const state = play(before, [
      { ...snapshot(log(["one "], "new"), 4), response: response("incomplete") },
    ]);

    expect(answer(before)).toBe("one two three");
    expect(answer(state)).toBe("one ");
    expect(live(state)).toEqual([]);
  });
});

describe("a conversation", () => {
  it("shows the stored text until the log has caught up with it", () => {
    const stored = message("msg_2", "msg_1", {
      role: "assistant",
      text: "one two",
      response: response("in_progress"),
    });
    const state = play(opened, [loaded(message("msg_1", null), stored)]);
    const events = log(["one ", "two ", "three"]);

    const shown = events.map((_, i) => answer(play(state, events.slice(0, i + 1))));

    expect(shown.slice(0, 5)).toEqual(Array<string>(5).fill("one two"));
    expect(shown.slice(5)).toEqual(["one two ", "one two three", "one two three"]);
  });

  it("does not fall back when an older answer about it comes late", () => {
    const before = play(opened, log(["done"]));
    const late = message("msg_2", "msg_1", {
      role: "assistant",
      text: "do",
      response: response("in_progress"),
    });

    const state = play(before, [loaded(message("msg_1", null), late)]);

    expect(answer(state)).toBe("done");
    expect(live(state)).toEqual([]);
  });

  it("ends in the answer that has just begun", () => {
    const state = play({ ...opened, conversation: { ...CONVERSATION, leaf_id: "msg_1" } }, [
      {
        type: "turn.accepted",
        request_id: "r",
        message: message("msg_1", null),
        response: response("in_progress"),
      },
    ]);

    expect(leafOf(state)).toBe("msg_2");
    expect(live(state)).toHaveLength(1);
  });

  it("is the same whether the notice or the answer to the turn comes first", () => {
    const accepted: OutwardFrame = {
      type: "turn.accepted",
      request_id: "r",
      message: message("msg_1", null),
      response: response("in_progress"),
    };
    const added: OutwardFrame = { type: "message.added", message: message("msg_1", null) };
    const events = log(["a", "b"]);

    const one = play(opened, [accepted, added, ...events]);
    const other = play(opened, [added, ...events.slice(0, 5), accepted, ...events.slice(5)]);

    expect(other.messages).toEqual(one.messages);
    expect(answer(one)).toBe("ab");
  });
});
