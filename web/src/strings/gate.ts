// What the page says to somebody who is not signed in.

import en from "./gate.en";
import { catalogue } from "./language";

export const { strings, speak } = catalogue(en, { de: () => import("./gate.de") });
