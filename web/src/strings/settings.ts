// What is said about what a person owns.

import en from "./settings.en";
import { catalogue } from "./language";

export const { strings, speak } = catalogue(en, { de: () => import("./settings.de") });
