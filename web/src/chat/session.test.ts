import { afterEach, expect, it, vi } from "vitest";

import { Session } from "../lib/session.svelte";

const ADA = { id: "user_1", email: "ada@example.org", name: "Ada", role: "member" };
const answer = (status: number, body: object) =>
  Promise.resolve(new Response(JSON.stringify(body), { status }));

afterEach(() => vi.unstubAllGlobals());

async function signedIn(): Promise<Session> {
  vi.stubGlobal("fetch", () => answer(200, ADA));
  const session = new Session();
  await session.look();
  return session;
}

it("stays where the server is not reached to end it, and says so", async () => {
  const session = await signedIn();
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("offline")));

  await session.signOut();

  expect(session.account?.name).toBe("Ada");
  expect(session.staying?.code).toBe("unreached");

  vi.stubGlobal("fetch", () => Promise.resolve(new Response(null, { status: 204 })));
  await session.signOut();
  expect([session.account, session.staying]).toEqual([null, null]);
});

it("is over where the server has ended it before", async () => {
  const session = await signedIn();
  vi.stubGlobal("fetch", () => answer(401, { code: "unauthenticated", detail: "" }));

  await session.signOut();

  expect([session.account, session.staying]).toEqual([null, null]);
});
