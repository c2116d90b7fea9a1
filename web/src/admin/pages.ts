// The sections of the page: which there are, who may see them, and what shows them.

import type { Component } from "svelte";

import type { Account } from "../lib/api";
import type { Live } from "../lib/live.svelte";
import Overview from "./Overview.svelte";

/** `part`: what of the section is meant, as the address says. */
export interface PageProps {
  readonly live: Live;
  readonly account: Account;
  readonly part: string;
}
type Page = Component<PageProps>;

interface Section {
  readonly group: "figures" | "people" | "server";
  readonly isForAdmins?: boolean;
  readonly load: () => Promise<{ default: Page }>;
}

/** For what asks for nothing; it is given the same, and does not look. */
const plain = (load: () => Promise<{ default: unknown }>): Section["load"] =>
  load as Section["load"];

export const SECTIONS = {
  overview: { group: "figures", load: () => Promise.resolve({ default: Overview }) },
  sessions: { group: "figures", load: () => import("./Sessions.svelte") },
  prefixes: { group: "figures", load: () => import("./Prefixes.svelte") },
  misses: { group: "figures", load: () => import("./Misses.svelte") },
  usage: { group: "people", load: () => import("./Usage.svelte") },
  people: { group: "people", load: () => import("./People.svelte") },
  invitations: {
    group: "people",
    isForAdmins: true,
    load: plain(() => import("./Invitations.svelte")),
  },
  groups: { group: "people", isForAdmins: true, load: plain(() => import("./Groups.svelte")) },
  keys: { group: "people", isForAdmins: true, load: plain(() => import("./Keys.svelte")) },
  audit: { group: "server", isForAdmins: true, load: plain(() => import("./Audit.svelte")) },
  health: { group: "server", load: plain(() => import("./Health.svelte")) },
  settings: { group: "server", isForAdmins: true, load: plain(() => import("./Settings.svelte")) },
} satisfies Record<string, Section>;

export type SectionName = keyof typeof SECTIONS;

export const NAMES = Object.keys(SECTIONS) as SectionName[];

export const sectionOf = (name: SectionName): Section => SECTIONS[name];

/** From "#misses/evicted_idle" to the section and its part; the first section for what is unknown. */
export function placeOf(hash: string): { name: SectionName; part: string } {
  const [name = "", part = ""] = hash.replace(/^#/, "").split("/");
  const known = NAMES.find((one) => one === name);
  return known ? { name: known, part: decodeURIComponent(part) } : { name: "overview", part: "" };
}
