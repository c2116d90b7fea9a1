// The library as one reads it, for whoever shows some of it; asked for anew when one changes it here.

import { untrack } from "svelte";

import { own } from "./api";
import { Asked } from "./asked.svelte";

let changes = $state(0);

/** A persona or a document is different now, or there is one more or less. */
export function libraryChanged(): void {
  changes += 1;
}

async function both() {
  const [personas, documents] = await Promise.all([own.personas(), own.documents()]);
  return { personas, documents };
}

/** Both lists, as long as the component lives that asks for them. */
export function askedShelves(): Asked<Awaited<ReturnType<typeof both>>> {
  const asked = new Asked(both);
  let seen = changes;
  $effect(() => {
    if (changes !== seen) untrack(() => void asked.load());
    seen = changes;
  });
  return asked;
}
