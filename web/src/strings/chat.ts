// What the chat page says.

import en from "./chat.en";
import { catalogue } from "./language";

export const { strings, speak } = catalogue(en, { de: () => import("./chat.de") });
