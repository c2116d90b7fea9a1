// What a conversation begins with, or began with: brought in with its words once the page is drawn.

import { speak } from "../strings/settings";

await speak();

export { default as Start } from "./Start.svelte";
export { default as Under } from "./Under.svelte";
