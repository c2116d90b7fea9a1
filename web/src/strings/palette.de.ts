import type en from "./palette.en";

const de: typeof en = {
  palette: "Finden und tun",
  placeholder: "Eine Unterhaltung, ein Wort darin oder etwas zu tun",
  results: "Was es gibt",
  actions: "Tun",
  conversations: "Unterhaltungen",
  messages: "Nachrichten",
  nothing: "Nichts heißt so.",

  newConversation: "Neue Unterhaltung",
  stop: "Antwort anhalten",
  again: "Noch einmal antworten",
  copyAnswer: "Letzte Antwort kopieren",
  summarise: "Mit einer Zusammenfassung weiter",
  fork: "Diese Unterhaltung kopieren",
  pin: "Diese Unterhaltung anheften",
  unpin: "Diese Unterhaltung lösen",
  keepWarm: "Diese Unterhaltung warm halten",
  letRest: "Diese Unterhaltung nicht mehr warm halten",
  archive: "Diese Unterhaltung archivieren",
  unarchive: "Diese Unterhaltung zurück in die Liste",
  exportReadable: "Diese Unterhaltung als Markdown exportieren",
  exportWhole: "Diese Unterhaltung mit allen Fassungen exportieren (JSON)",
  takeOut: "Alle Unterhaltungen exportieren",
  keys: "Tasten auf der Tastatur",
  dashboard: "Was der Cache bringt: die Übersicht",
  speak: (language) => `Sprache: ${language}`,
  settings: "Einstellungen",
  signOut: "Abmelden",

  close: "Schließen",
  keyNames: { mod: "Strg", shift: "Umschalt", enter: "Eingabe", escape: "Esc" },
  means: {
    palette: "Eine Unterhaltung oder Nachricht finden oder etwas tun",
    newConversation: "Eine neue Unterhaltung beginnen",
    send: "Die Nachricht senden",
    newLine: "Eine neue Zeile beginnen",
    stop: "Die Antwort anhalten",
    field: "Zum Feld für Nachrichten",
    edit: "Im leeren Feld: die letzte Nachricht ändern",
    help: "Diese Tasten zeigen",
  },
};

export default de;
