// What an OpenID provider sent somebody back with, in words.

import { strings } from "../strings/gate";

/** Why somebody came back without being signed in; null if that is not how they came. */
export function refusalIn(hash: string): string | null {
  const code = new URLSearchParams(hash.slice(1)).get("sign-in");
  return code === null ? null : (strings.refusals[code] ?? strings.refused);
}
