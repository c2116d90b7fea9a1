import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { type AST, parse } from "svelte/compiler";
import { describe, expect, it } from "vitest";

import { CODES } from "../generated/codes";
import type * as English from "./faults.en";
import { catalogue, firstSpoken } from "./language";

type Module = { default: object };

const HERE = import.meta.dirname;
const OTHERS = ["de"];

describe("the page's language", () => {
  it("is the one that was chosen, else the first that the browser asks for and we have", () => {
    expect(firstSpoken([null, "en-GB", "de"])).toBe("en");
    expect(firstSpoken(["de", "en-GB"])).toBe("de");
    expect(firstSpoken([null, "fr-FR", "de-CH"])).toBe("de");
    expect(firstSpoken([null, "fr"])).toBe("en");
  });

  it("is English for an area whose other words are out of reach", async () => {
    const { strings, speak } = catalogue({ send: "Send" }, { de: () => Promise.reject(Error()) });

    await speak();

    expect(strings.send).toBe("Send");
  });
});

describe("the catalogues", () => {
  const areas = readdirSync(HERE)
    .map((file) => /^(\w+)\.en\.ts$/.exec(file)?.[1])
    .filter((area) => area !== undefined);

  it.each(areas)("of %s say the same in every language", async (area) => {
    const english = (await import(`./${area}.en.ts`)) as Module;
    for (const language of OTHERS) {
      const other = (await import(`./${area}.${language}.ts`)) as Module;
      expect(shape(other.default)).toEqual(shape(english.default));
    }
  });
});

describe("one of a thing", () => {
  const MANY =
    /(?<![\d.,])1 (?:\p{L}+ ){0,2}(tokens|pages|messages|conversations|blocks|turns|hits|answers are|characters|ones|members|documents|parts|were|are|Seiten|Nachrichten|Unterhaltungen|Blöcke|Züge|Teile|Mitglieder|Dokumente|kleinere|werden|sind|waren)(?!\p{L})/u;
  const files = readdirSync(HERE)
    .map((file) => /^(\w+)\.(en|de)\.ts$/.exec(file)?.slice(1) ?? [])
    .filter(([area]) => area !== undefined);

  it.each(files)("is never many in %s.%s", async (area, language) => {
    const { default: found } = (await import(`./${area}.${language}.ts`)) as Module;

    // Whichever way a function takes its figures.
    const isMany = (ways: readonly string[]) => ways.every((said) => MANY.test(said));
    expect([...saidOfOne(found)].filter(isMany)).toEqual([]);
  });
});

/** What every function in a catalogue says where each of its figures is 1. */
function* saidOfOne(found: unknown): Generator<string[]> {
  if (typeof found === "function") {
    const say = found as (...of: unknown[]) => unknown;
    yield ["1", 1, true].map((one) => String(say(...Array<unknown>(found.length).fill(one))));
  } else if (typeof found === "object" && found !== null)
    for (const value of Object.values(found)) yield* saidOfOne(value);
}

describe("what the server refuses", () => {
  it.each(["en", ...OTHERS])("has words for each of its codes in %s", async (language) => {
    const { default: faults } = (await import(`./faults.${language}.ts`)) as typeof English;

    const told = CODES.filter((code) => /\p{L}.*\.$/u.test(faults.codes[code]));

    expect(told).toEqual(CODES);
  });
});

/** The names in a catalogue; a function says how many figures and names it wants. */
function shape(found: unknown): unknown {
  if (typeof found === "function") return found.length;
  if (typeof found !== "object" || found === null) return typeof found;
  return Object.fromEntries(Object.entries(found).map(([name, value]) => [name, shape(value)]));
}

describe("components", () => {
  const folders = readdirSync(join(HERE, ".."), { recursive: true, encoding: "utf8" });
  const components = folders.filter((file) => file.endsWith(".svelte"));

  it.each(components)("%s has no words of its own", (file) => {
    const source = readFileSync(join(HERE, "..", file), "utf8");

    expect([...words(parse(source, { modern: true }).fragment)]).toEqual([]);
  });
});

const SAID = new Set([
  "action",
  "alt",
  "aria-description",
  "aria-label",
  "label",
  "lead",
  "placeholder",
  "title",
]);
// What it is called, and what keyboards say.
const NAMES = /Keepwarm|^(Enter|Shift)$/g;

/** Every text that somebody would read, as far as it stands in the markup itself. */
function* words(node: unknown): Generator<string> {
  if (typeof node !== "object" || node === null || isSilent(node)) return;
  const { type, data } = node as Partial<AST.Text>;
  const text = type === "Text" ? String(data).trim() : "";
  if (/\p{L}/u.test(text.replace(NAMES, ""))) yield text;
  for (const value of Object.values(node)) yield* words(value);
}

function isSilent(node: object): boolean {
  const { type, name } = node as Partial<AST.Attribute>;
  return type === "Attribute" && !SAID.has(name ?? "");
}
