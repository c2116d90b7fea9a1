// What the settings are, in other languages; in English the server says it.

import type { Variable, WordedDefault } from "../generated/variables";
import { catalogue } from "./language";

export type { Variable, WordedDefault };

export interface Variables {
  readonly words: Readonly<Partial<Record<Variable, string>>>;
  readonly defaults: Readonly<Partial<Record<WordedDefault, string>>>;
}

const en: Variables = { words: {}, defaults: {} };

export const { strings, speak } = catalogue(en, { de: () => import("./variables.de") });
