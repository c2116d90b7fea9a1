// What a browser loads before a page can be used stays under its budget, compressed.

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const CHAT_KIB = 120;
const MORE_FOR_ADMIN_KIB = 100;
const PAGE = new URL("../app/page/", import.meta.url);

const read = (file) => readFileSync(new URL(file, PAGE));
const zipped = (files) =>
  [...files].reduce((sum, file) => sum + gzipSync(read(file), { level: 9 }).length, 0) / 1024;

/** A page and everything that it asks for by itself. */
function loaded(page) {
  const html = read(page).toString();
  const files = [...html.matchAll(/(?:src|href)="\/(assets\/[^"]+\.(?:js|css))"/g)].map(
    (m) => m[1],
  );
  if (files.length === 0) throw new Error(`${page} asks for nothing: build it`);
  return new Set([page, ...files]);
}

const chat = loaded("index.html");
const more = loaded("admin.html").difference(chat);
const sizes = [
  ["chat entry", zipped(chat), CHAT_KIB],
  ["admin entry, more than chat", zipped(more), MORE_FOR_ADMIN_KIB],
];
for (const [name, kib, budget] of sizes) {
  console.log(`${name}: ${kib.toFixed(1)} of ${budget} KiB (gzip)`);
}
if (sizes.some(([, kib, budget]) => kib > budget)) process.exit(1);
