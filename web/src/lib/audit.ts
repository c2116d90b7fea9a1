// What the audit log keeps beside an act, as people read it. Pure.

import type { AuditView } from "../generated/admin";
import { strings } from "../strings/admin";
import { count } from "./figures";

type Named = Readonly<Record<string, string>>;
type Details = AuditView["details"];

/** Looked up when it is shown: by then the page speaks its language. */
const words = (): Readonly<Record<string, Named>> => ({
  role: strings.people.roles,
  kind: strings.quotas.kinds,
  scopes: strings.keys.scopeNames,
  what: strings.audit.figures,
  visibility: strings.audit.readers,
  archived: strings.audit.truth,
});

/** "quota: Turns a day, allowed: 7"; names and ids are as they are. */
export const details = (told: Details): string =>
  Object.keys(told)
    .map((name) => `${(strings.audit.names as Named)[name] ?? name}: ${value(told, name)}`)
    .join(", ");

function value(told: Details, name: string): string {
  const found = told[name];
  if (name === "allowed") return allowed(told);
  const values: unknown[] = Array.isArray(found) ? found : [found];
  return values.map((one) => words()[name]?.[String(one)] ?? String(one)).join(", ");
}

/** In the unit that the quota's name has. */
function allowed({ allowed, kind }: Details): string {
  if (typeof allowed !== "number") return strings.quotas.unlimited;
  return count(String(kind).endsWith("_bytes") ? allowed / 2 ** 20 : allowed);
}
