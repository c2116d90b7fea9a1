// HTTP for what a person owns: the library, the account, logins, keys, use.

import { call } from "../lib/api";
import type { Account } from "../lib/api";
import type { Item } from "../lib/library";
import { type Said, textOf } from "./says";

export interface Example {
  readonly user: string;
  readonly assistant: string;
}

export interface PersonaText {
  readonly name: string;
  readonly instructions: string;
  readonly examples: readonly Example[];
  readonly document_ids: readonly string[];
}

export interface DocumentText {
  readonly title: string;
  readonly text: string;
}

/** Who may use something. Readers (by their addresses) and groups are of what is `listed`. */
export interface Access {
  readonly visibility: Item["visibility"];
  readonly readers: readonly string[];
  readonly group_ids: readonly string[];
}

export const ONLY_ME: Access = { visibility: "owner", readers: [], group_ids: [] };

/** Who is listed is told to those who may edit it. */
export interface Told extends Omit<Access, "visibility"> {
  readonly summary: Omit<Item, "is_warm">;
}

export type Persona = Omit<PersonaText, "name"> & Told;
export type Document = Pick<DocumentText, "text"> & Told;

export interface Group {
  readonly id: string;
  readonly name: string;
  readonly member_ids: readonly string[];
}

export interface Version {
  readonly number: number;
  readonly created_at: number;
  /** Null: it came with the program, or the account is no more. */
  readonly author_email: string | null;
  readonly tokens: number | null;
}

export interface Extracted extends DocumentText {
  /** Of a PDF. */
  readonly pages: number | null;
}

export interface Login {
  readonly id: string;
  readonly user_agent: string;
  readonly created_at: number;
  readonly last_seen_at: number;
  readonly is_this_one: boolean;
}

export interface Identity {
  readonly id: string;
  readonly issuer: string;
  readonly label: string;
}

export const SCOPES = ["read", "write", "figures"] as const;
export type Scope = (typeof SCOPES)[number];

export interface Key {
  readonly id: string;
  readonly name: string;
  readonly prefix: string;
  readonly scopes: readonly Scope[];
  readonly created_at: number;
  readonly last_used_at: number | null;
  readonly expires_at: number | null;
}

export interface Used {
  readonly kind: string;
  /** Null: it is not counted here. */
  readonly used: number | null;
  /** Null: there is no limit. */
  readonly allowed: number | null;
  readonly resets_at: number | null;
}

/** One day of UTC (as `2026-12-31`), one model, one key. */
export interface DayOfUse {
  readonly day: string;
  readonly requests: number;
  readonly computed_tokens: number;
  readonly cached_tokens: number;
  readonly output_tokens: number;
}

const at = (place: string, id: string): string => `/api/${place}/${encodeURIComponent(id)}`;

export const own = {
  personas: () => call<readonly Item[]>("GET", "/api/personas"),
  persona: (id: string) => call<Persona>("GET", at("personas", id)),
  makePersona: (says: PersonaText, access: Access) =>
    call<Persona>("POST", "/api/personas", { ...says, ...access }),
  rewritePersona: (id: string, says: PersonaText) =>
    call<Persona>("POST", `${at("personas", id)}/versions`, says),

  /** The conversation leaves the versions that it began with for the newest. */
  moveOn: (conversationId: string) =>
    call<unknown>("POST", `${at("conversations", conversationId)}/newest`),

  documents: () => call<readonly Item[]>("GET", "/api/documents"),
  document: (id: string) => call<Document>("GET", at("documents", id)),
  makeDocument: (says: DocumentText, access: Access) =>
    call<Document>("POST", "/api/documents", { ...says, ...access }),
  rewriteDocument: (id: string, says: DocumentText) =>
    call<Document>("POST", `${at("documents", id)}/versions`, says),
  /** What a PDF, an HTML page or a text file says; nothing of it is kept. */
  read: (file: File) =>
    call<Extracted>(
      "POST",
      `/api/files/text?${new URLSearchParams({ name: file.name }).toString()}`,
      new Blob([file], { type: "application/octet-stream" }),
    ),

  versions: (shelf: Shelf, id: string) =>
    call<readonly { version: Version; is_warm: boolean }[]>("GET", `${at(shelf, id)}/versions`),
  version: (shelf: Shelf, id: string, number: number) =>
    call<Said>("GET", `${at(shelf, id)}/versions/${number}`),
  /** What an old version said is what the newest says, under a number of its own. */
  takeUp: (shelf: Shelf, id: string, said: Said) =>
    call<unknown>("POST", `${at(shelf, id)}/versions`, textOf(shelf, said)),
  /** For administrators. */
  groups: () => call<readonly Group[]>("GET", "/api/groups"),
  allow: (shelf: Shelf, id: string, access: Access) =>
    call<unknown>("PATCH", at(shelf, id), access),
  archive: (shelf: Shelf, id: string, archived: boolean) =>
    call<unknown>("PATCH", at(shelf, id), { archived }),
  remove: (shelf: Shelf, id: string) => call<null>("DELETE", at(shelf, id)),

  rename: (name: string) => call<Account>("PATCH", "/api/account", { name }),
  changePassword: (current_password: string, password: string) =>
    call<null>("POST", "/api/account/password", { current_password, password }),
  leaveForGood: (current_password: string | null) =>
    call<null>("POST", "/api/account/removal", { current_password }),

  logins: () => call<readonly Login[]>("GET", "/api/logins"),
  endLogin: (id: string) => call<null>("DELETE", at("logins", id)),
  endOtherLogins: () => call<null>("DELETE", "/api/logins"),
  identities: () => call<readonly Identity[]>("GET", "/api/identities"),
  link: () => call<{ url: string }>("POST", "/api/identities"),
  unlink: (id: string) => call<null>("DELETE", at("identities", id)),

  keys: () => call<readonly Key[]>("GET", "/api/keys"),
  makeKey: (name: string, scopes: readonly Scope[], expires_in_s: number | null) =>
    call<{ key: string; view: Key }>("POST", "/api/keys", { name, scopes, expires_in_s }),
  revoke: (id: string) => call<null>("DELETE", at("keys", id)),

  usage: () =>
    call<{ quotas: readonly Used[]; days: readonly DayOfUse[] }>("GET", "/api/account/usage"),
};

export type Shelf = "personas" | "documents";
