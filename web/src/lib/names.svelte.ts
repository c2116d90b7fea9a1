// What ids stand for: people by their address, personas and documents by their title.

import { admin } from "./admin";
import { call } from "./api";

interface Titled {
  readonly id: string;
  readonly name?: string;
  readonly title?: string;
}

export class Names {
  #known = $state.raw<Readonly<Record<string, string>>>({});

  /** Those that may be seen; the others keep their ids. Auditors see no library. */
  async load(isAdmin: boolean): Promise<void> {
    const people = admin.sums().then((all) => all.map((one) => [one.id, one.email] as const));
    const library = isAdmin ? ["/api/personas", "/api/documents"] : [];
    const found = await Promise.allSettled([people, ...library.map(titles)]);
    const told = found.flatMap((one) => (one.status === "fulfilled" ? one.value : []));
    this.#known = Object.fromEntries(told);
  }

  readonly of = (id: string): string => this.#known[id] ?? tail(id);
}

async function titles(path: string): Promise<(readonly [string, string])[]> {
  const items = await call<readonly Titled[]>("GET", path);
  return items.map((one) => [one.id, one.name ?? one.title ?? one.id] as const);
}

/** The end of an id is what tells it from others of the same minute. */
export const tail = (id: string): string => `…${id.slice(-6)}`;
