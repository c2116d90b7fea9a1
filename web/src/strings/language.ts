// Which language the page speaks: the one that was chosen here, else what the browser asks for.
//
// An area of the page has its strings in a catalogue of its own, one file for each language. English
// comes with the code; another language is a file that is loaded before the area is shown.

export const LANGUAGES = { en: "English", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;

const KEY = "keepwarm.language";

/** The first of these that the page speaks; English if it speaks none. */
export function firstSpoken(tags: readonly (string | null)[]): Language {
  const languages = tags.map((tag) => tag?.toLowerCase().split("-")[0]);
  return languages.find((one): one is Language => one !== undefined && one in LANGUAGES) ?? "en";
}

export const language = firstSpoken([localStorage.getItem(KEY), ...navigator.languages]);

/** Languages that could be chosen instead, each with its own name for itself. */
export const others = Object.entries(LANGUAGES).filter(([tag]) => tag !== language) as [
  Language,
  string,
][];

/** "1 page", "2 pages": of a number that is written out already. */
export const many = (written: string, one: string, more: string): string =>
  `${written} ${written === "1" ? one : more}`;

/** The page is loaded anew: what is drawn already has its words. */
export function choose(wished: Language): void {
  localStorage.setItem(KEY, wished);
  location.reload();
}

interface Catalogue<Strings> {
  /** English, until `speak` is through. */
  readonly strings: Strings;
  /** Brings the page's language in. Where it is out of reach, English stays. */
  speak(): Promise<void>;
}

type Others<Strings> = Readonly<
  Record<Exclude<Language, "en">, () => Promise<{ default: Strings }>>
>;

export function catalogue<Strings extends object>(
  english: Strings,
  others: Others<Strings>,
): Catalogue<Strings> {
  const strings = { ...english };
  async function speak(): Promise<void> {
    if (language === "en") return;
    const found = await others[language]().catch(() => null);
    Object.assign(strings, found?.default);
  }
  return { strings, speak };
}
