// What the administrators' page says.

import en from "./admin.en";
import { catalogue } from "./language";

export const { strings, speak } = catalogue(en, { de: () => import("./admin.de") });
