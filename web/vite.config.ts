import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

const SERVER = process.env["KEEPWARM_DEV_SERVER"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: "../app/page",
    emptyOutDir: true,
    rollupOptions: { input: ["index.html", "admin.html"] },
    // The page's security policy allows no data: addresses but for images, and nothing inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: ["chrome123", "firefox121", "safari17.5"],
  },
  server: {
    proxy: { "/api": SERVER, "/ws": { target: SERVER, ws: true } },
  },
  // The time is for busy machines; nothing here waits.
  test: { environment: "jsdom", include: ["src/**/*.test.ts"], testTimeout: 120_000 },
});
