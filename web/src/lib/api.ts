// HTTP: typed fetch with the CSRF token, and the page's one error type.

import type {
  CancelAccepted,
  ConversationView,
  Draft,
  MessageView,
  Presence,
  Problem,
  QuotaFault,
  ResponseView,
} from "../generated/events";
import type { HeadIds } from "./library";
import { strings } from "../strings/faults";

export interface Account {
  readonly id: string;
  readonly email: string;
  readonly name: string;
  readonly role: string;
  /** Not for who only ever came by a provider. */
  readonly has_password: boolean;
}

export interface ServerStatus {
  readonly model: string;
  readonly context_tokens: number;
}

/** A turn that is stored; there is no message where an answer was asked for anew. */
export interface Accepted {
  readonly message: MessageView | null;
  readonly response: ResponseView;
}

/** `leaf_id`: the branch that was seen ends there. */
export interface Again {
  readonly client_message_id: string;
  readonly leaf_id: string;
}

/** One page of a list; the next begins at `next_cursor`. */
export interface Page<T> {
  readonly items: readonly T[];
  readonly next_cursor: string | null;
}

/** A conversation and its newest messages; those before them begin at `next_cursor`. */
export interface Opened {
  readonly conversation: ConversationView;
  readonly messages: readonly MessageView[];
  readonly next_cursor: string | null;
}

/** Messages that are asked for at once. */
const PAGE = 100;

export type ShelfName = "current" | "pinned" | "archived";

/** What its owner may change of a conversation; what is left out stays. */
export interface Changes {
  readonly title?: string;
  readonly archived?: boolean;
  readonly pinned?: boolean;
  readonly kept_warm?: boolean;
}

/** A message that has all the words, and what stands around the first of them. */
export interface Found {
  readonly conversation_id: string;
  readonly title: string;
  readonly message_id: string;
  readonly role: string;
  readonly created_at: number;
  readonly excerpt: readonly { readonly text: string; readonly is_match: boolean }[];
}

export interface Imported {
  readonly conversation_ids: readonly string[];
  readonly messages: number;
  readonly under_default_persona: number;
  readonly not_kept_warm: number;
}

/** Whatever went wrong, by HTTP or on the socket. `status` 0: the server was not reached. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status = 0,
    readonly field: string | null = null,
    readonly retryAfterS: number | null = null,
    readonly quota: QuotaFault | null = null,
  ) {
    super(message);
  }

  get isOfOldPage(): boolean {
    return this.code === "unsupported_protocol";
  }

  static of(problem: Problem): ApiError {
    const { code, message, field, retry_after_s, quota } = problem;
    return new ApiError(code, message, 400, field, retry_after_s, quota);
  }
}

const conversationPath = (id: string): string => `/api/conversations/${encodeURIComponent(id)}`;
const messagePath = (id: string, messageId: string): string =>
  `${conversationPath(id)}/messages/${encodeURIComponent(messageId)}`;

/** Where one conversation, or all of them, can be downloaded. */
export const exportPath = (id: string, form: "json" | "markdown"): string =>
  `${conversationPath(id)}/export?${query({ form })}`;
export const EXPORT_ALL = "/api/export";

export function query(parameters: Record<string, string | number | null>): string {
  const told = Object.entries(parameters).filter(([, value]) => value !== null);
  return new URLSearchParams(told.map(([name, value]) => [name, String(value)])).toString();
}

export const api = {
  account: () => call<Account>("GET", "/api/account"),
  login: (email: string, password: string) =>
    call<Account>("POST", "/api/login", { email, password }),
  logout: () => call<null>("POST", "/api/logout"),
  setup: (token: string, email: string, name: string, password: string) =>
    call<Account>("POST", "/api/setup", { token, email, name, password }),
  choosePassword: (token: string, password: string) =>
    call<Account>("POST", "/api/password", { token, password }),
  waysIn: () => call<{ provider: string | null }>("GET", "/api/sign-in"),
  /** Where the provider waits; `invitation` is the token of a link that is to be accepted so. */
  leave: (invitation: string | null) => call<{ url: string }>("POST", "/api/oidc", { invitation }),
  status: () => call<ServerStatus>("GET", "/api/status"),

  conversations: (shelf: ShelfName, cursor: string | null) =>
    call<Page<ConversationView>>(
      "GET",
      `/api/conversations?${query({ shelf, limit: 50, cursor })}`,
    ),
  search: (words: string, cursor: string | null) =>
    call<Page<Found>>("GET", `/api/search?${query({ words, cursor })}`),
  create: (head: HeadIds) => call<ConversationView>("POST", "/api/conversations", head),
  /** Its newest messages, oldest first. */
  conversation: (id: string) =>
    call<Opened>("GET", `${conversationPath(id)}?${query({ limit: PAGE })}`),
  /** Those before them, the newest first. */
  messages: (id: string, cursor: string) =>
    call<Page<MessageView>>(
      "GET",
      `${conversationPath(id)}/messages?${query({ cursor, limit: PAGE })}`,
    ),
  change: (id: string, changes: Changes) =>
    call<ConversationView>("PATCH", conversationPath(id), changes),
  bringIn: (file: Blob) => call<Imported>("POST", "/api/import", file),
  remove: (id: string) => call<null>("DELETE", conversationPath(id)),

  turn: (id: string, client_message_id: string, parent_id: string | null, text: string) =>
    call<Accepted>("POST", `${conversationPath(id)}/turns`, { client_message_id, parent_id, text }),
  edit: (id: string, messageId: string, text: string, again: Again) =>
    call<Accepted>("POST", `${messagePath(id, messageId)}/edit`, { ...again, text }),
  regenerate: (id: string, messageId: string, again: Again) =>
    call<Accepted>("POST", `${messagePath(id, messageId)}/regenerate`, again),
  goOn: (id: string, messageId: string, again: Again) =>
    call<Accepted>("POST", `${messagePath(id, messageId)}/continue`, again),
  choose: (id: string, message_id: string) =>
    call<ConversationView>("PUT", `${conversationPath(id)}/leaf`, { message_id }),
  fork: (id: string, message_id: string) =>
    call<ConversationView>("POST", `${conversationPath(id)}/fork`, { message_id }),
  /** `text` is to be said next: there will be room for it. */
  summarise: (id: string, again: Again, text: string) =>
    call<ConversationView>("POST", `${conversationPath(id)}/summary`, { ...again, text }),
  stopSummary: (id: string) => call<null>("DELETE", `${conversationPath(id)}/summary`),
  prune: (id: string, messageId: string) => call<null>("DELETE", messagePath(id, messageId)),
  /** What a page says that has no socket, under the name that its event stream gave it. */
  hint: (pageId: string, { type, ...hint }: Draft | Presence) =>
    call<null>("POST", `/api/pages/${encodeURIComponent(pageId)}/${type}`, hint),
  cancel: (responseId: string) =>
    call<Pick<CancelAccepted, "step">>(
      "POST",
      `/api/responses/${encodeURIComponent(responseId)}/cancel`,
    ),
};

/** Rejects with `ApiError`. */
export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  try {
    return await asked<T>(method, path, body);
  } catch (error) {
    // The refusal brought a new token along.
    if (error instanceof ApiError && error.code === "csrf") return asked<T>(method, path, body);
    throw error;
  }
}

async function asked<T>(method: string, path: string, body: unknown): Promise<T> {
  const response = await fetched(path, {
    method,
    headers: {
      accept: "application/json",
      "x-csrf-token": csrfToken(document.cookie),
      ...(body === undefined ? {} : { "content-type": contentType(body) }),
    },
    ...(body === undefined ? {} : { body: body instanceof Blob ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  return (text ? JSON.parse(text) : null) as T;
}

function contentType(body: unknown): string {
  const type = body instanceof Blob ? body.type : "";
  if (type.includes("zip")) return "application/zip";
  return type === "application/octet-stream" ? type : "application/json";
}

let tellSignedOut = (): void => {};

/** Who is told when the server no longer knows this login; one listener for the page. */
export function onSignedOut(listener: () => void): void {
  tellSignedOut = listener;
}

/** Like `fetch`, but whatever is not a success is an `ApiError`. */
export async function fetched(path: string, init: RequestInit): Promise<Response> {
  const response = await fetch(path, { credentials: "same-origin", ...init }).catch(() => {
    throw new ApiError("unreached", strings.codes.unreached);
  });
  if (response.status === 401) tellSignedOut();
  if (!response.ok) throw await refusal(response);
  return response;
}

interface ProblemDetails {
  readonly code: string;
  readonly detail: string;
  readonly field: string | null;
  readonly quota: QuotaFault;
}

async function refusal(response: Response): Promise<ApiError> {
  const retryAfter = Number(response.headers.get("retry-after"));
  const details = (await response.json().catch(() => ({}))) as Partial<ProblemDetails>;
  return new ApiError(
    details.code ?? "server_error",
    details.detail ?? strings.answeredBy(response.status),
    response.status,
    details.field ?? null,
    retryAfter || null,
    details.quota ?? null,
  );
}

export function csrfToken(cookies: string): string {
  const pair = cookies.split("; ").find((part) => part.startsWith("kw_csrf="));
  return pair ? pair.slice("kw_csrf=".length) : "";
}
