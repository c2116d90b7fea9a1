// Readers are addressed as “du”.

import type en from "./chat.en";

const de: typeof en = {
  // ---------------------------------------------------------------- everywhere
  loading: "Keepwarm lädt.",
  tryAgain: "Noch einmal versuchen",
  cancel: "Abbrechen",
  delete: "Löschen",
  stop: "Anhalten",
  send: "Senden",

  // ---------------------------------------------------------------- the list of conversations
  conversations: "Unterhaltungen",
  newConversation: "Neue Unterhaltung",
  openList: "Liste der Unterhaltungen öffnen",
  closeList: "Liste schließen",
  search: "Suchen",
  searchAll: "In allen Nachrichten suchen",
  found: "Gefundene Nachrichten",
  showMore: "Mehr zeigen",
  noneFound: "Keine Nachricht enthält diese Wörter.",
  listFailed: "Die Liste konnte nicht geladen werden.",
  listEmpty: "Hier sammeln sich deine Unterhaltungen.",
  archive: "Archiv",
  archiveEmpty: "Im Archiv ist nichts.",
  backToList: "Zurück zur Liste",
  showOlder: "Ältere zeigen",
  pinned: "Angeheftet",
  today: "Heute",
  yesterday: "Gestern",
  pastWeek: "Letzte Woche",
  older: "Älter",
  moreAbout: (title) => `Mehr zu „${title}“`,
  beingWritten: "Eine Antwort wird geschrieben",
  keptWarm: "Wird warm gehalten",
  rename: "Umbenennen",
  renameMore: "Umbenennen …",
  renameTitle: "Unterhaltung umbenennen",
  title: "Titel",
  pin: "Anheften",
  unpin: "Lösen",
  keepWarm: "Warm halten",
  letRest: "Ruhen lassen",
  doArchive: "Archivieren",
  unarchive: "Zurück in die Liste",
  exportReadable: "Exportieren, zum Lesen",
  exportWhole: "Exportieren, vollständig",
  deleteMore: "Löschen …",
  deleteConversation: "Diese Unterhaltung löschen?",
  deleteConversationWhat: (title) =>
    `„${title}“ wird mit allem darin gelöscht, auch was der Rechner davon warm hielt.`,

  // ---------------------------------------------------------------- you
  you: "Du und deine Unterhaltungen",
  bringIn: "Unterhaltungen hereinholen …",
  takeOut: "Alle Unterhaltungen mitnehmen",
  settings: "Einstellungen",
  signOut: "Abmelden",
  findAndDo: "Finden und tun",
  paletteKey: "Strg K",
  dashboard: "Was der Cache bringt",
  keys: "Tasten auf der Tastatur",
  importFile: "Datei mit Unterhaltungen",
  reading: (file) => `„${file}“ wird gelesen …`,
  cameIn: (conversations, messages) =>
    `Hereingekommene Unterhaltungen: ${conversations}, mit ${messages} Nachrichten.`,

  // ---------------------------------------------------------------- the conversation
  conversation: "Unterhaltung",
  conversationLoading: "Die Unterhaltung lädt.",
  conversationGone: "Diese Unterhaltung gibt es nicht mehr.",
  showEarlier: "Zeigen, was davor gesagt wurde",
  showAll: (characters) => `Alle ${characters} Zeichen zeigen`,
  startNew: "Eine neue beginnen",
  question: "Worüber wollen wir reden?",
  promise: "Jede Frage berechnet nur, was neu ist. Alles andere bleibt warm.",
  starters: [
    "Erkläre in drei Sätzen, warum der Himmel blau ist.",
    "Gib mir ein einfaches Rezept für Linsensuppe.",
    "Schreib ein kurzes Gedicht über ein Feuer, das die Nacht über brennt.",
  ],
  toEnd: "Zu den neuesten Worten",
  model: "Das Modell, das antwortet",
  answering: "Keepwarm antwortet.",
  answerComplete: "Die Antwort ist vollständig.",
  answerStopped: "Die Antwort wurde angehalten.",
  answerFailed: "Die Antwort ist fehlgeschlagen.",

  // ---------------------------------------------------------------- one message
  youSaid: "Du",
  readingNew: "Liest, was neu ist …",
  notSentYet: "Noch nicht gesendet.",
  stopped: "Angehalten.",
  failed: "Diese Antwort ist fehlgeschlagen.",
  interrupted: "Der Server wurde mitten in der Antwort beendet; so weit hatte er sie gespeichert.",
  cutOff: "Abgeschnitten: Länger darf eine Antwort nicht sein.",
  goOn: "Weiter",
  versions: "Fassungen",
  versionBefore: "Die Fassung davor",
  versionAfter: "Die nächste Fassung",
  copy: "Kopieren",
  copied: "Kopiert",
  copyRefused: "Nicht erlaubt",
  again: "Noch einmal antworten",
  edit: "Bearbeiten",
  editMessage: "Nachricht bearbeiten",
  fork: "Von hier in einer neuen Unterhaltung weiter",
  prune: "Ab hier löschen",
  deleteAnswer: "Diese Antwort löschen?",
  deleteMessage: "Diese Nachricht löschen?",
  deleteFollowing: "Was darauf folgt, wird mit gelöscht.",
  deleteOthersStay: "Die anderen Fassungen bleiben.",
  table: "Tabelle",
  image: (words) => `Bild: ${words}`,

  // ---------------------------------------------------------------- writing
  message: "Nachricht",
  writeMessage: "Schreib eine Nachricht",
  stopAnswer: "Antwort anhalten",
  stopKey: "Anhalten (Esc)",
  enterSends: "sendet,",
  enterBreaks: "beginnt eine neue Zeile",
  prepare: "Beim Tippen vorbereiten",
  prepareWhat: "Ungesendetes geht an den Server und wird dort nie gespeichert",
  contextFull: (percent) => `${percent} % des Kontexts`,
  contextUsed: (tokens, limit) =>
    `Diese Unterhaltung nimmt ${tokens} der ${limit} Token ein, die das Modell auf einmal lesen kann.`,
  contextNearly: "Er ist fast voll. Danach geht es mit einer Zusammenfassung weiter.",
  typedAbout: (tokens) => `Was du geschrieben hast, sind etwa ${tokens} Token.`,
  kept: "Was du geschrieben hast, ist noch da.",
  tooLong: (tokens, room) =>
    `Das sind etwa ${tokens} Token, und Platz ist für ${room}. Es wird nicht passen.`,
  againIn: (time) => `Versuch es in ${time} noch einmal.`,
  summarise: "Mit einer Zusammenfassung weiter",
  summarising: "Eine Zusammenfassung wird geschrieben; mit ihr beginnt eine neue Unterhaltung.",

  // ---------------------------------------------------------------- the line to the server
  connecting: "Verbindet neu. Antworten gehen ohne dich weiter, und nichts geht verloren.",
  slowRoad: "Etwas auf dem Weg sperrt Websockets; es geht auf einem langsameren Weg weiter.",
  updated: "Keepwarm wurde erneuert.",
  reload: "Seite neu laden",
  lost: "Die Verbindung ist abgerissen.",
  emptyStream: "Von der Antwort kommt nichts.",
  restarting: "Keepwarm startet neu. Deine Antworten gehen danach weiter, nichts geht verloren.",
  answeredBy: (status) => `Der Server antwortete ${status}.`,

  // ---------------------------------------------------------------- what went wrong
  faults: {
    unreached: "Keepwarm ist gerade nicht zu erreichen.",
    unavailable: "Die Rechenmaschine ist kurz weg.",
    rate_limit_exceeded: "Das war viel auf einmal.",
    context_length_exceeded:
      "Mit der Unterhaltung davor sind das mehr Token, als das Modell auf einmal lesen kann.",
    parent_moved:
      "Diese Unterhaltung ging inzwischen anderswo weiter und wird jetzt so gezeigt. Sende noch einmal, wenn es noch passt.",
    turn_in_progress: "Hier wird noch eine Antwort geschrieben. Warte auf sie oder halte sie an.",
    not_continuable: "Diese Antwort lässt sich nicht fortsetzen, aber noch einmal erbitten.",
    summary_stopped: "Die Zusammenfassung wurde angehalten.",
    not_found: "Das gibt es nicht mehr.",
    bad_credentials: "Die Adresse oder das Passwort stimmt nicht.",
    account_disabled: "Dieses Konto ist gesperrt.",
    invalid_link: "Dieser Link wurde benutzt oder zurückgezogen oder ist zu alt.",
    wrong_password: "Das Passwort stimmt nicht.",
    in_use: "Das wird noch benutzt. Stattdessen lässt es sich archivieren.",
    last_admin: "Du bist der letzte Administrator. Mach erst jemand anderen dazu.",
    login_too_old:
      "Deine Anmeldung ist dafür zu lange her. Melde dich neu an und komm dann zurück.",
    only_way_in: "Ohne das könntest du dich nicht mehr anmelden.",
    forbidden: "Das darfst du nicht.",
    server_error: "Auf dem Server ging etwas schief.",
  },
  quotas: {
    named: {
      requests_per_day: (allowed) =>
        `Das heutige Kontingent an Nachrichten ist verbraucht (${allowed} am Tag).`,
      tokens_per_day: (allowed) =>
        `Vom heutigen Kontingent an Token ist dafür zu wenig übrig (${allowed} am Tag).`,
      generations: (allowed) =>
        `Es werden schon ${allowed} deiner Antworten geschrieben; mehr zugleich geht nicht. Warte auf eine oder halte sie an.`,
      sockets: (allowed) => `Du hast ${allowed} Seiten offen; mehr geht nicht. Schließ eine.`,
      stored_bytes: (allowed) =>
        `Deine Unterhaltungen füllen die ${allowed}, die du speichern darfst. Lösch einige.`,
      kept_warm_bytes: (allowed) =>
        `Du darfst ${allowed} warm halten, und die sind vergeben. Lass erst eine andere Unterhaltung ruhen.`,
    },
    otherwise: (allowed) => `Dein Kontingent von ${allowed} ist verbraucht.`,
    until: (time) => `Platz ist wieder ab ${time}.`,
  },

  // ---------------------------------------------------------------- what a turn cost
  underMs: "unter 1 ms",
  newTokens: (tokens) => `${tokens} neu`,
  fromCache: (tokens) => `${tokens} aus dem Cache`,
  firstToken: (time) => `erstes Token ${time}`,
  prompt: (tokens) => `Ein Prompt von ${tokens} Token`,
  sources: {
    template: "aus dem Anfang des Modells, geteilt",
    persona: "aus der Persona, geteilt",
    document: "aus einem Dokument, geteilt",
    session: "aus dieser Unterhaltung",
    computed: "neu",
  },
  restored: (tokens) => `${tokens} der Token aus dem Cache waren geparkt und wurden geholt.`,
  differsAt: (token) => `Das erste Token, das anders ist, hat die Nummer ${token}.`,
  times: (waited, read, tokens, wrote) =>
    `Gewartet ${waited}, Neues gelesen in ${read}, ${tokens} Token geschrieben in ${wrote}`,
  speed: (tokens) => `${tokens} je Sekunde`,
  misses: {
    first_turn: "Das war die erste Frage; von der Unterhaltung war noch nichts warm.",
    new_branch: "Diese Frage verließ den früheren Zweig; was nach der Gabelung kommt, war neu.",
    input_changed: "Der gesendete Verlauf ist nicht der, der warm war.",
    instructions_changed: "Die Anweisungen wurden geändert; alles danach wurde neu berechnet.",
    template_changed: "Die Chat-Vorlage wurde geändert; der Verlauf wurde einmal neu berechnet.",
    model_changed: "Das Modell wurde gewechselt; der Verlauf wurde einmal neu berechnet.",
    evicted_idle: "Die Unterhaltung ruhte lange und machte anderen Platz.",
    evicted_pressure: "Der Speicher wurde für andere Unterhaltungen gebraucht.",
    evicted_quota: "Der Anteil am Speicher, den einer haben darf, war aufgebraucht.",
    engine_restart: "Die Rechenmaschine startete neu und hatte die Unterhaltung vergessen.",
    below_granularity: "Was sich wiederverwenden ließ, war kleiner als das kleinste Behaltene.",
  },
  warmth: { warm: "warm", parked: "geparkt", cold: "kalt" },
  isWarm: (tokens) =>
    `${tokens} Token davon sind bereit: Die nächste Frage berechnet nur, was neu ist.`,
  isPartlyWarm: (ready, rest) =>
    `${ready} Token davon sind bereit: Die nächste Frage berechnet die anderen ${rest} und Neues.`,
  isParked: (tokens) => `${tokens} Token davon sind geparkt: Die nächste Frage holt sie erst.`,
  isCold: "Sie ist abgekühlt: Die nächste Frage berechnet sie neu, einmal.",
};

export default de;
