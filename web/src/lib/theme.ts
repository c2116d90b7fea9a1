// Light, dark or as the system; chosen in this browser, for all its pages of Keepwarm.

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const KEY = "keepwarm.theme";

export function theme(): Theme {
  const stored = localStorage.getItem(KEY);
  return THEMES.find((one) => one === stored) ?? "system";
}

export function chooseTheme(wished: Theme): void {
  if (wished === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, wished);
  applyTheme();
}

/** Also what the browser draws around the page. */
export function applyTheme(): void {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
  for (const meta of document.querySelectorAll<HTMLMetaElement>('meta[name="theme-color"]')) {
    meta.dataset["system"] ??= meta.media;
    const isIts = meta.dataset["system"].includes(chosen);
    meta.media = chosen === "system" ? meta.dataset["system"] : isIts ? "all" : "not all";
  }
}
