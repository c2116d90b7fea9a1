// What an OpenID provider sent somebody back with, in words.

import { strings as faults } from "../strings/faults";
import { strings } from "../strings/gate";

/** Why somebody came back without being signed in; null if that is not how they came. */
export function refusalIn(hash: string): string | null {
  const code = new URLSearchParams(hash.slice(1)).get("sign-in");
  if (code === null) return null;
  const codes: Readonly<Record<string, string>> = faults.codes;
  return strings.refusals[code] ?? codes[code] ?? strings.refused;
}
