// What the command palette and the help on keys say.

import { catalogue } from "./language";
import en from "./palette.en";

export const { strings, speak } = catalogue(en, { de: () => import("./palette.de") });
