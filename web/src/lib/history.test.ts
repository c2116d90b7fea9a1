import { afterEach, expect, it, vi } from "vitest";

import type { MessageView } from "../generated/events";
import { api } from "./api";
import { History } from "./history.svelte";
import { EMPTY, reduce, type State } from "./reduce";

/** A chain of so many messages, `m0` first. */
const CHAIN = Array.from({ length: 300 }, (_, i) => ({
  id: `m${i}`,
  conversation_id: "conv_1",
  parent_id: i ? `m${i - 1}` : null,
  role: "user",
  text: "",
  created_at: i,
  client_message_id: null,
  response: null,
})) as MessageView[];

const page = (before: number) => ({
  items: CHAIN.slice(Math.max(0, before - 100), before).toReversed(),
  next_cursor: before > 100 ? `m${before - 100}` : null,
});

async function opened(): Promise<{ history: History; reader: { state: State } }> {
  const conversation = { id: "conv_1", leaf_id: "m299" };
  const first = { conversation, messages: CHAIN.slice(200), next_cursor: "m200" };
  vi.spyOn(api, "conversation").mockResolvedValue(first as never);
  const reader = {
    id: "conv_1",
    messages: CHAIN,
    state: EMPTY,
    during: async (asked: Promise<unknown>) => void (await asked),
  };
  const history = new History(reader);
  reader.state = reduce(reader.state, await history.newest("conv_1"));
  return { history, reader };
}

afterEach(() => {
  vi.restoreAllMocks();
});

it("asks for a page once, however many want what is on it", async () => {
  const { history, reader } = await opened();
  const asked = vi
    .spyOn(api, "messages")
    .mockImplementation((_, before) => Promise.resolve(page(Number(before?.slice(1)))) as never);

  await Promise.all([history.reach("m150"), history.reach("m150"), history.reach("m20")]);

  expect(asked.mock.calls.map(([, before]) => before)).toEqual(["m200", "m100"]);
  expect(Object.keys(reader.state.messages)).toHaveLength(300);
  expect(history.isWhole).toBe(true);
});

it("asks again for a page that did not come", async () => {
  const { history, reader } = await opened();
  const asked = vi.spyOn(api, "messages").mockRejectedValueOnce(new Error("away"));
  await expect(history.reach("m150")).rejects.toThrow("away");
  asked.mockResolvedValueOnce(page(200) as never);

  await history.reach("m150");

  expect(reader.state.messages["m150"]).toBeDefined();
});
