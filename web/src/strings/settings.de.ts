import type en from "./settings.en";

const de: typeof en = {
  settings: "Einstellungen",
  sections: "Bereiche",
  close: "Schließen",
  back: "Zurück",
  save: "Speichern",
  saved: "Gespeichert.",
  edit: "Bearbeiten",
  delete: "Löschen",
  archive: "Archivieren",
  unarchive: "Wieder anbieten",
  archived: "archiviert",
  loading: "Wird geladen …",
  tryAgain: "Noch einmal versuchen",
  more: (name) => `Mehr zu „${name}“`,

  general: "Allgemein",
  personas: "Personas",
  documents: "Dokumente",
  account: "Konto",
  logins: "Anmeldungen",
  keys: "API-Schlüssel",
  usage: "Verbrauch",

  // ---------------------------------------------------------------- general
  language: "Sprache",
  theme: "Darstellung",
  themes: { system: "System", light: "Hell", dark: "Dunkel" },
  prepare: "Beim Tippen vorbereiten",
  prepareWhat:
    "Was du tippst, geht schon vor der Eingabetaste an den Server, damit es bis dahin gelesen ist und die Antwort früher kommt. Es bleibt nur im Arbeitsspeicher und wird nie gespeichert. Was dafür berechnet wird, zählt als Verbrauch, auch wenn du den Text noch änderst.",

  // ---------------------------------------------------------------- the library
  tokens: (tokens, isOne) => (isOne ? "1 Token" : `${tokens} Token`),
  tokensOrMore: (tokens) => `mindestens ${tokens} Token`,
  notCounted: "noch nicht gezählt",
  warm: "wird warm gehalten",
  version: (version) => `Version ${version}`,
  published: { listed: "für einige veröffentlicht", everybody: "für alle veröffentlicht" },
  showArchived: "Archivierte zeigen",

  personasLead:
    "Eine Persona sagt dem Modell, wer es ist. Sie steht am Kopf einer Unterhaltung, wird einmal berechnet und von da an aus dem Cache gelesen.",
  newPersona: "Neue Persona",
  noPersonas: "Du hast noch keine eigene.",
  editPersona: "Persona bearbeiten",
  persona: "Persona",
  name: "Name",
  instructions: "Anweisungen",
  instructionsHint: "Wer sie ist, wie sie antwortet, was sie weglässt.",
  examples: "Beispiele",
  examplesHint: "Fragen mit Antworten, nach denen sie sich richten soll.",
  example: (number) => `Beispiel ${number}`,
  question: "Frage",
  answer: "Antwort",
  addExample: "Beispiel hinzufügen",
  removeExample: (number) => `Beispiel ${number} entfernen`,
  brings: "Dokumente, die dazugehören",
  newVersion:
    "Beim Speichern entsteht eine neue Version. Neue Unterhaltungen nehmen sie; bestehende behalten ihre und bleiben warm.",
  newVersionForAll:
    "Sie ist veröffentlicht: Die neue Version bekommen alle angeboten, die sie lesen dürfen.",
  deletePersona: "Diese Persona löschen?",
  deletePersonaWhat: (name) =>
    `„${name}“ und alle Versionen davon sind dann weg. Solange eine Unterhaltung sie hat, geht das nicht; archiviere sie dann.`,

  documentsLead:
    "Ein Dokument wird einmal ganz gelesen, und du kannst danach fragen, so oft du willst. Es steht am Kopf einer Unterhaltung, vor allem, was gesagt wird.",
  newDocument: "Dokument schreiben",
  upload: "Datei hochladen",
  uploadWhat: "PDF, HTML, Markdown oder Text",
  reading: (name) => `„${name}“ wird gelesen …`,
  noDocuments: "Du hast noch keine eigenen.",
  editDocument: "Dokument bearbeiten",
  document: "Dokument",
  title: "Titel",
  text: "Text",
  textHint: "Was das Modell liest.",
  extracted: (name) => `Das ist der Text von „${name}“. Sieh ihn durch, bevor du ihn behältst.`,
  pages: (pages, isOne) => (isOne ? "Eine Seite." : `${pages} Seiten.`),
  deleteDocument: "Dieses Dokument löschen?",
  deleteDocumentWhat: (name) =>
    `„${name}“ und alle Versionen davon sind dann weg. Solange eine Unterhaltung oder eine Persona es hat, geht das nicht; archiviere es dann.`,

  // ---------------------------------------------------------------- who may use it
  whoMay: "Wer das benutzen darf",
  access: { owner: "Nur ich", listed: "Diese Gruppen und Personen", everybody: "Alle hier" },
  mayUse: {
    owner: "Nur du darfst das benutzen.",
    listed: "Das ist für dich oder eine deiner Gruppen veröffentlicht.",
    everybody: "Alle hier dürfen das benutzen.",
  },
  groups: "Gruppen",
  noGroups: "Es gibt noch keine. Gruppen werden in der Verwaltung angelegt.",
  members: (count, isOne) => (isOne ? "1 Mitglied" : `${count} Mitglieder`),
  people: "Personen",
  peopleHint: "Ihre E-Mail-Adressen, eine je Zeile.",
  publication: "Veröffentlichung",
  publicationWhat:
    "Was hier festgelegt wird, gilt ab der nächsten Anfrage, auch in Unterhaltungen, die es schon gibt.",
  allow: "So festlegen",
  publishCopy: "Eine Kopie veröffentlichen",
  publishCopyWhat:
    "Das hier bleibt nur deins. Die Kopie sagt, was oben steht, und alle aus der Verwaltung können sie bearbeiten.",
  publish: "Veröffentlichen",
  narrower: (name) =>
    `„${name}“ ist für weniger Leute veröffentlicht als diese Persona. Wer es nicht lesen darf, kann auch mit der Persona nicht beginnen.`,

  // ---------------------------------------------------------------- old versions
  versions: "Versionen",
  versionsStay: "Unterhaltungen bleiben bei der Version, mit der sie begonnen haben.",
  versionNamed: (version) => `Version ${version}`,
  newest: "neueste",
  by: (email) => `von ${email}`,
  takeUp: "Wieder aufnehmen",
  takeUpWhat: "Daraus wird eine neue Version, die dasselbe sagt.",

  // ---------------------------------------------------------------- what a conversation begins with
  beginWith: "Beginnen mit",
  change: "Ändern, womit diese Unterhaltung beginnt",
  done: "Fertig",
  noneToPick: "Es gibt noch keine.",
  pickedDocuments: (count, isOne) => (isOne ? "1 Dokument" : `${count} Dokumente`),
  comesAlong: "gehört zur Persona",
  weight: (tokens) => `Am Kopf: ${tokens}.`,
  weightWarm: (tokens) =>
    `Davon ${tokens === "1" ? "wird" : "werden"} ${tokens} für alle warm gehalten.`,
  weightOnce: "Die erste Unterhaltung liest es; jede weitere findet es im Cache.",
  beganWith: "Womit diese Unterhaltung begann",
  moveOn: "Neueste Version nehmen",
  moveOnWhat: "Die nächste Anfrage liest den neuen Kopf einmal; von da an steht er im Cache.",
  manage: "Verwalten",

  // ---------------------------------------------------------------- the account
  accountLead: "Wer du hier bist.",
  email: "E-Mail",
  role: "Rolle",
  roles: { admin: "Administrator", member: "Mitglied", auditor: "Prüfer" },
  password: "Passwort",
  currentPassword: "Bisheriges Passwort",
  newPassword: "Neues Passwort",
  passwordHint: "Mindestens 8 Zeichen. Überall sonst wirst du abgemeldet; Schlüssel gelten weiter.",
  changePassword: "Passwort ändern",
  passwordChanged: "Das Passwort ist geändert, und du bist überall sonst abgemeldet.",
  noPassword: "Du meldest dich über einen Anbieter an; hier gibt es kein Passwort.",
  waysIn: "Anmelden über andere",
  link: (provider) => `Mit ${provider} verknüpfen`,
  unlink: "Trennen",
  unlinkNamed: (label) => `${label} trennen`,
  takeOut: "Alles exportieren",
  takeOutWhat:
    "Alle Unterhaltungen mit jedem Zweig, als eine Datei, die sich wieder importieren lässt.",
  download: "Herunterladen",
  remove: "Konto löschen",
  removeWhat:
    "Deine Unterhaltungen, Personas, Dokumente und Schlüssel sind dann für immer weg, und auch, was die Engine davon aufbewahrt. Was du für andere veröffentlicht hast, bleibt.",
  removeAsk: "Dein Konto löschen?",
  removeSure:
    "Es gibt keinen Weg zurück. Nimm deine Unterhaltungen vorher mit, wenn du sie behalten willst.",
  removeByLogin:
    "Du hast hier kein Passwort. Wenn deine Anmeldung länger als zehn Minuten her ist, melde dich ab und wieder an, und komm dann zurück.",

  // ---------------------------------------------------------------- logins
  loginsLead:
    "Wo du angemeldet bist. Eine Anmeldung endet von selbst, wenn sie zwei Wochen nicht benutzt wird.",
  thisOne: "diese hier",
  on: (browser, system) => `${browser} auf ${system}`,
  unknownBrowser: "Ein Browser",
  unknownSystem: "einem unbekannten System",
  lastSeen: (when) => `Zuletzt benutzt ${when}`,
  since: (when) => `seit ${when}`,
  end: "Abmelden",
  endNamed: (name) => `${name} abmelden`,
  endOthers: "Überall sonst abmelden",
  onlyHere: "Du bist nur hier angemeldet.",

  // ---------------------------------------------------------------- keys
  keysLead:
    "Mit einem Schlüssel benutzen Programme Keepwarm als du: jedes SDK von OpenAI, unter dieser Adresse.",
  address: "Adresse",
  newKey: "Neuer Schlüssel",
  keyName: "Wofür er ist",
  scopes: "Was er darf",
  scopeNames: {
    read: "Lesen: Modelle und was gespeichert ist",
    write: "Schreiben: fragen, anhalten, löschen, den Socket öffnen",
    figures: "Zahlen sehen: die Metriken des Servers",
  },
  scopeShort: { read: "lesen", write: "schreiben", figures: "Zahlen" },
  lasts: "Wie lange er gilt",
  lifetimes: {
    week: "Eine Woche",
    month: "30 Tage",
    quarter: "90 Tage",
    year: "Ein Jahr",
    ever: "Bis er zurückgezogen wird",
  },
  makeKey: "Schlüssel anlegen",
  keyOnce: "Der Schlüssel wird nur dieses eine Mal gezeigt. Kopiere ihn jetzt.",
  yourKey: "Dein neuer Schlüssel",
  copy: "Kopieren",
  copied: "Kopiert",
  noKeys: "Es gibt keine Schlüssel.",
  neverUsed: "nie benutzt",
  lastUsed: (when) => `zuletzt benutzt ${when}`,
  expires: (when) => `endet ${when}`,
  expired: (when) => `endete ${when}`,
  revoke: "Zurückziehen",
  revokeNamed: (name) => `${name} zurückziehen`,
  revokeAsk: "Diesen Schlüssel zurückziehen?",
  revokeWhat: (name) =>
    `Programme, die „${name}“ benutzen, sind sofort ausgesperrt, und das lässt sich nicht rückgängig machen.`,

  // ---------------------------------------------------------------- use
  usageLead:
    "Was du verbraucht hast und verbrauchen darfst. Was im Cache gefunden wird, kostet nichts.",
  quotas: {
    requests_per_day: "Anfragen heute",
    tokens_per_day: "Token heute",
    generations: "Antworten zugleich",
    sockets: "Offene Verbindungen",
    stored_bytes: "Gespeicherter Text",
    kept_warm_bytes: "Warm gehalten",
  },
  usedOf: (used, allowed) => `${used} von ${allowed}`,
  unlimited: (used) => `${used}, keine Grenze`,
  upTo: (allowed) => `bis zu ${allowed}`,
  noLimit: "keine Grenze",
  resets: (when) => `Beginnt ${when} von vorn`,
  days: "Die letzten 30 Tage",
  day: "Tag",
  turns: "Anfragen",
  computed: "Neu gelesen",
  cached: "Aus dem Cache",
  written: "Geschrieben",
  noDays: "Noch nichts.",
  savedShare: (share) => `${share} von allem Gelesenen kam aus dem Cache.`,
};

export default de;
