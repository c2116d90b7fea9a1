// HTTP for what a person owns: the library, the account, logins, keys, use.

import { call } from "../lib/api";
import type { Account } from "../lib/api";
import type { Item } from "../lib/library";

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

type Told = Omit<Item, "is_warm">;
export type Persona = Omit<PersonaText, "name"> & { readonly summary: Told };
export type Document = Pick<DocumentText, "text"> & { readonly summary: Told };

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
  makePersona: (says: PersonaText) => call<Persona>("POST", "/api/personas", says),
  rewritePersona: (id: string, says: PersonaText) =>
    call<Persona>("POST", `${at("personas", id)}/versions`, says),

  /** The conversation leaves the versions that it began with for the newest. */
  moveOn: (conversationId: string) =>
    call<unknown>("POST", `${at("conversations", conversationId)}/newest`),

  documents: () => call<readonly Item[]>("GET", "/api/documents"),
  document: (id: string) => call<Document>("GET", at("documents", id)),
  makeDocument: (says: DocumentText) => call<Document>("POST", "/api/documents", says),
  rewriteDocument: (id: string, says: DocumentText) =>
    call<Document>("POST", `${at("documents", id)}/versions`, says),
  /** What a PDF, an HTML page or a text file says; nothing of it is kept. */
  read: (file: File) =>
    call<Extracted>(
      "POST",
      `/api/files/text?${new URLSearchParams({ name: file.name }).toString()}`,
      new Blob([file], { type: "application/octet-stream" }),
    ),

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
