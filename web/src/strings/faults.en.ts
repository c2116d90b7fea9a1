// What went wrong, for whoever is concerned: English, and the form that every other language has.

import type { Code } from "../generated/codes";
import { many } from "./language";

export default {
  /** By its code; `unreached` is the page's own. */
  codes: {
    unreached: "Keepwarm cannot be reached right now.",
    account_disabled: "This account is disabled.",
    bad_credentials: "The address or the password is wrong.",
    body_too_large: "This is larger than the server takes.",
    conflict: "This does not go together with what is there.",
    context_length_exceeded:
      "With the conversation before it, this has more tokens than the model can read at once.",
    csrf: "The page is out of step with the server. Load it anew.",
    email_taken:
      "There is an account with your email address already. Sign in with its password; from there it can be linked.",
    file_damaged: "This file is damaged, or not whole.",
    file_encrypted: "This file needs a password.",
    file_foreign: "This is no export of Keepwarm’s or ChatGPT’s.",
    file_too_complex: "Reading this file takes more time or memory than a file gets.",
    file_too_large: "There is more in this file than can be taken in.",
    file_unknown: "This is no PDF, no HTML and no text that can be read here.",
    file_without_conversations: "There is no conversation in this file.",
    file_without_text:
      "There is no text in this file; perhaps its pages are pictures from a scanner.",
    forbidden: "You may not do this.",
    gone: "What this belongs to was deleted meanwhile.",
    identity_taken: "This is linked to another account.",
    in_use: "This is still in use. It can be archived instead.",
    invalid_job: "The model cannot answer this.",
    invalid_json_schema: "No answer can be held to the schema that was asked for.",
    invalid_link: "This link was used or revoked, or is too old.",
    invalid_prompt: "The model cannot answer this.",
    invalid_request: "The server cannot take this as it is.",
    last_admin: "You are the last administrator. Make somebody else one first.",
    login_too_old: "You signed in too long ago for this. Sign in again, and then come back.",
    needs_password: "The first administrator needs a password. Open the link again and choose one.",
    no_address: "Your email address was not told, and an account needs one.",
    no_provider: "Nobody signs in by a provider here.",
    not_continuable: "This answer cannot be gone on with; it can be asked for once more.",
    not_found: "This is not here any more.",
    not_invited: "There is no account for you here yet. Ask an administrator for an invitation.",
    nothing_to_sum_up: "Nothing was said yet that could be summed up.",
    only_way_in: "Without it you could not sign in any more.",
    origin: "This does not come from Keepwarm’s own page.",
    parent_moved:
      "This conversation went on elsewhere meanwhile, and is shown now as it is. Send again if it still fits.",
    provider_unavailable: "The provider cannot be reached right now.",
    quota_exceeded: "Your quota is used up.",
    rate_limit_exceeded: "That was much at once.",
    response_deleted: "This was sent before, and its answer was deleted.",
    server_error: "Something went wrong on the server.",
    sign_in_denied: "You were not signed in there.",
    sign_in_expired: "That took too long, or began in another browser. Try again.",
    sign_in_refused: "The provider did not sign you in.",
    summary_in_progress: "A summary is being written already.",
    summary_stopped: "The summary was stopped.",
    too_many_invitations: "As many links as may be wait already. Revoke some first.",
    too_many_items: "You have as many of these as an account may have. Delete some first.",
    turn_in_progress: "An answer is still being written here. Wait for it, or stop it.",
    unauthenticated: "You are not signed in.",
    unavailable: "The engine is away for a moment.",
    unknown_host: "The server does not answer to the name in the address line.",
    wrong_address: "To sign in this way, open Keepwarm at its own address first.",
    wrong_password: "The password is wrong.",
  } satisfies Record<Code | "unreached", string>,
  /** By its code and the field at fault, where that tells more. */
  fields: {
    conflict: {
      archived: "The persona that everybody begins with cannot be archived.",
      email: "There is an account with this address.",
      name: "There is a group of this name.",
      visibility: "The persona that everybody begins with stays everybody’s.",
    },
    context_length_exceeded: {
      instructions: "This has more tokens than the model can read at once.",
      leaf_id: "Even behind a summary of the conversation there would be no room for this.",
      text: "This alone has more tokens than the model can read at once. Shorten it.",
    },
    invalid_request: {
      allowed: "A quota is a whole number, from 0 upwards.",
      assistant: "An answer is empty or too long.",
      cursor: "This list is out of step with the server. Load the page anew.",
      document_ids: "These are too many documents.",
      email: "This is not an email address.",
      examples: "These are too many examples.",
      instructions: "The instructions are empty or too long.",
      name: "The name is empty or too long.",
      note: "Whom it is for is empty or too long.",
      password: "The password is too short or too long.",
      readers: "One of these addresses has no account here.",
      scopes: "A key is for something: choose what.",
      text: "The text is empty or too long.",
      title: "The title is empty or too long.",
      user: "A question is empty or too long.",
      words: "There is no word in this to look for, or there are too many.",
    },
  },
  /** What has a code that this page has never heard of. */
  otherwise: "The server refused this.",
  inItsWords: (words: string) => `In its own words: “${words}”`,
  answeredBy: (status: number) => `The server answered ${status}.`,
  againIn: (time: string) => `Try again in ${time}.`,
  quotas: {
    named: {
      requests_per_day: (allowed: string) =>
        `Today’s quota of messages is used up (${allowed} a day).`,
      tokens_per_day: (allowed: string) =>
        `Today’s quota of tokens has too few left for this (${allowed} a day).`,
      generations: (allowed: string) =>
        `${many(allowed, "of your answers is", "of your answers are")} being written, and more at once are not allowed. Wait for one, or stop it.`,
      sockets: (allowed: string) =>
        `You have ${many(allowed, "page", "pages")} open, and more are not allowed. Close one.`,
      stored_bytes: (allowed: string) =>
        `Your conversations fill the ${allowed} that you may store. Delete some to make room.`,
      kept_warm_bytes: (allowed: string) =>
        `You may keep ${allowed} warm, and that is taken. Let another conversation rest first.`,
    },
    otherwise: (allowed: string) => `Your quota of ${allowed} is used up.`,
    until: (time: string) => `There is room again from ${time}.`,
  },
};
