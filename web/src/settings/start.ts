// The line under a new conversation's heading, brought in with its words once the page is drawn.

import { speak } from "../strings/settings";

await speak();

export { default as Start } from "./Start.svelte";
