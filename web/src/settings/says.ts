// What an old version said and who may read it, in the form that the server is told. Pure.

import type { Item } from "../lib/library";
import type { Access, DocumentText, Example, PersonaText, Shelf } from "./api";

/** One version, as it is stored. */
export interface Said {
  readonly name: string;
  readonly text: string;
  /** Of a persona: what the user and the assistant say, in turns. */
  readonly examples: readonly { readonly role: string; readonly text: string }[];
  readonly document_ids: readonly string[];
}

export function examplesOf({ examples }: Said): Example[] {
  return examples.flatMap(({ text: user }, place) => {
    const answer = place % 2 === 0 ? examples[place + 1] : undefined;
    return answer === undefined ? [] : [{ user, assistant: answer.text }];
  });
}

export function textOf(shelf: Shelf, said: Said): PersonaText | DocumentText {
  const { name, text, document_ids } = said;
  return shelf === "documents"
    ? { title: name, text }
    : { name, instructions: text, examples: examplesOf(said), document_ids };
}

/** Addresses, however somebody wrote them one after the other. */
export const addresses = (written: string): string[] =>
  written.split(/[\s,;]+/).filter((one) => one !== "");

/** Somebody who may use the persona may not read this document, so that they cannot begin with it. */
export function isNarrower(
  document: Pick<Item, "visibility">,
  persona: Pick<Access, "visibility">,
): boolean {
  if (persona.visibility === "owner") return false;
  return (
    document.visibility === "owner" ||
    (document.visibility === "listed" && persona.visibility === "everybody")
  );
}
