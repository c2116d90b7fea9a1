// What went wrong, as every page says it.

import en from "./faults.en";
import { catalogue } from "./language";

export const { strings, speak } = catalogue(en, { de: () => import("./faults.de") });
