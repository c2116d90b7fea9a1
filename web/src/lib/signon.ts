// What an OpenID provider sent somebody back with, in words.

const WORDS: Readonly<Record<string, string>> = {
  sign_in_expired: "That took too long, or began in another browser. Try again.",
  sign_in_denied: "You were not signed in there.",
  not_invited: "There is no account for you here yet. Ask an administrator for an invitation.",
  no_address: "Your email address was not told, and an account needs one.",
  email_taken:
    "There is an account with your email address already. Sign in with its password; from there it can be linked.",
  identity_taken: "This is linked to another account.",
  account_disabled: "This account is disabled.",
  invalid_link: "This invitation was used or revoked, or is too old.",
  needs_password: "The first administrator needs a password. Open the link again and choose one.",
  provider_unavailable: "It cannot be reached right now. Try again in a moment.",
  rate_limit_exceeded: "Too many attempts to sign in. Try again in a moment.",
};
const OTHERWISE = "You could not be signed in this way.";

/** Why somebody came back without being signed in; null if that is not how they came. */
export function refusalIn(hash: string): string | null {
  const code = new URLSearchParams(hash.slice(1)).get("sign-in");
  return code === null ? null : (WORDS[code] ?? OTHERWISE);
}
