// What a browser loads before the page can be used stays under the budget, compressed.

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const BUDGET_KIB = 120;
const PAGE = new URL("../app/page/", import.meta.url);

const index = readFileSync(new URL("index.html", PAGE), "utf8");
const files = [...index.matchAll(/(?:src|href)="\/(assets\/[^"]+\.(?:js|css))"/g)].map((m) => m[1]);
const bytes = files.reduce(
  (sum, file) => sum + gzipSync(readFileSync(new URL(file, PAGE)), { level: 9 }).length,
  gzipSync(index).length,
);
const kib = bytes / 1024;
console.log(`chat entry: ${kib.toFixed(1)} of ${BUDGET_KIB} KiB (gzip)`);
if (files.length === 0 || kib > BUDGET_KIB) process.exit(1);
