import js from "@eslint/js";
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";

const inner = (group, message) => ({
  "no-restricted-imports": ["error", { patterns: [{ group, message }] }],
});

export default ts.config(
  { ignores: ["node_modules", "src/generated"] },
  js.configs.recommended,
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  {
    languageOptions: { globals: { ...globals.browser, ...globals.node } },
    rules: {
      complexity: ["error", 10],
      "max-lines": ["error", 300],
      "@typescript-eslint/no-empty-function": "off",
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_" }],
    },
  },
  {
    files: ["**/*.svelte", "**/*.svelte.ts"],
    languageOptions: { parserOptions: { parser: ts.parser } },
  },
  {
    files: ["src/lib/**"],
    // What is beside it is no component, though it may have runes.
    rules: inner(["*.svelte", "!./*.svelte", "../chat/*", "../admin/*"], "lib knows no component"),
  },
  {
    files: ["src/admin/**"],
    rules: inner(["**/generated/*", "../chat/*"], "types come by way of lib; chat is another page"),
  },
  {
    files: ["src/chat/**"],
    rules: inner(["**/generated/*"], "generated types come by way of lib"),
  },
);
