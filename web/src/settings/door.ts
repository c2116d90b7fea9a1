// The settings, brought in with their words when somebody opens them.

import { speak } from "../strings/settings";

await speak();

export { default as Settings } from "./Settings.svelte";
