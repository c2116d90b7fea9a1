import type en from "./faults.en";
import { many } from "./language";

const de: typeof en = {
  codes: {
    unreached: "Keepwarm ist gerade nicht zu erreichen.",
    account_disabled: "Dieses Konto ist gesperrt.",
    bad_credentials: "Die Adresse oder das Passwort stimmt nicht.",
    body_too_large: "Das ist größer, als der Server es annimmt.",
    conflict: "Das passt nicht zu dem, was schon da ist.",
    context_length_exceeded:
      "Mit der Unterhaltung davor sind das mehr Token, als das Modell auf einmal lesen kann.",
    csrf: "Die Seite ist nicht mehr auf dem Stand des Servers. Lade sie neu.",
    email_taken:
      "Zu deiner E-Mail-Adresse gibt es schon ein Konto. Melde dich mit dessen Passwort an; dann kannst du beides verknüpfen.",
    file_damaged: "Diese Datei ist beschädigt oder nicht vollständig.",
    file_encrypted: "Diese Datei braucht ein Passwort.",
    file_foreign: "Das ist kein Export von Keepwarm oder ChatGPT.",
    file_too_complex:
      "Diese Datei zu lesen braucht mehr Zeit oder Speicher, als eine Datei bekommt.",
    file_too_large: "In dieser Datei steht mehr, als aufgenommen werden kann.",
    file_unknown: "Das ist kein PDF, kein HTML und kein Text, der sich hier lesen lässt.",
    file_without_conversations: "In dieser Datei ist keine Unterhaltung.",
    file_without_text:
      "In dieser Datei ist kein Text; vielleicht sind ihre Seiten Bilder aus einem Scanner.",
    forbidden: "Das darfst du nicht.",
    gone: "Wozu das gehört, das wurde inzwischen gelöscht.",
    identity_taken: "Das ist mit einem anderen Konto verknüpft.",
    in_use: "Das wird noch benutzt. Stattdessen lässt es sich archivieren.",
    invalid_job: "Darauf kann das Modell nicht antworten.",
    invalid_json_schema: "An das verlangte Schema kann sich keine Antwort halten.",
    invalid_link: "Dieser Link wurde benutzt oder zurückgezogen oder ist zu alt.",
    invalid_prompt: "Darauf kann das Modell nicht antworten.",
    invalid_request: "So nimmt der Server das nicht an.",
    last_admin: "Du bist der letzte Administrator. Mach erst jemand anderen dazu.",
    login_too_old:
      "Deine Anmeldung ist dafür zu lange her. Melde dich neu an und komm dann zurück.",
    needs_password:
      "Der erste Administrator braucht ein Passwort. Öffne den Link noch einmal und wähle eines.",
    no_address: "Deine E-Mail-Adresse wurde nicht mitgeteilt; ein Konto braucht eine.",
    no_provider: "Über einen Anbieter meldet sich hier niemand an.",
    not_continuable: "Diese Antwort lässt sich nicht fortsetzen, aber noch einmal erbitten.",
    not_found: "Das gibt es nicht mehr.",
    not_invited:
      "Hier gibt es noch kein Konto für dich. Bitte einen Administrator um eine Einladung.",
    nothing_to_sum_up: "Es wurde noch nichts gesagt, was sich zusammenfassen ließe.",
    only_way_in: "Ohne das könntest du dich nicht mehr anmelden.",
    origin: "Das kommt nicht von Keepwarms eigener Seite.",
    parent_moved:
      "Diese Unterhaltung ging inzwischen anderswo weiter und wird jetzt so gezeigt. Sende noch einmal, wenn es noch passt.",
    provider_unavailable: "Der Anbieter ist gerade nicht zu erreichen.",
    quota_exceeded: "Dein Kontingent ist verbraucht.",
    rate_limit_exceeded: "Das war viel auf einmal.",
    response_deleted: "Das wurde schon einmal gesendet, und die Antwort darauf wurde gelöscht.",
    server_error: "Auf dem Server ging etwas schief.",
    sign_in_denied: "Du wurdest dort nicht angemeldet.",
    sign_in_expired:
      "Das hat zu lange gedauert oder in einem anderen Browser begonnen. Versuch es noch einmal.",
    sign_in_refused: "Der Anbieter hat dich nicht angemeldet.",
    summary_in_progress: "Es wird schon eine Zusammenfassung geschrieben.",
    summary_stopped: "Die Zusammenfassung wurde angehalten.",
    too_many_invitations: "Mehr offene Links gehen nicht. Zieh erst welche zurück.",
    too_many_items: "Mehr davon kann ein Konto nicht haben. Lösch erst welche.",
    turn_in_progress: "Hier wird noch eine Antwort geschrieben. Warte auf sie oder halte sie an.",
    unauthenticated: "Du bist nicht angemeldet.",
    unavailable: "Die Rechenmaschine ist kurz weg.",
    unknown_host: "Auf den Namen in der Adresszeile hört der Server nicht.",
    wrong_address: "Um dich so anzumelden, öffne Keepwarm erst unter seiner eigenen Adresse.",
    wrong_password: "Das Passwort stimmt nicht.",
  },
  fields: {
    conflict: {
      archived: "Die Persona, mit der alle beginnen, lässt sich nicht archivieren.",
      email: "Zu dieser Adresse gibt es schon ein Konto.",
      name: "Eine Gruppe mit diesem Namen gibt es schon.",
      visibility: "Die Persona, mit der alle beginnen, bleibt für alle.",
    },
    context_length_exceeded: {
      instructions: "Das hat mehr Token, als das Modell auf einmal lesen kann.",
      leaf_id: "Selbst hinter einer Zusammenfassung der Unterhaltung wäre dafür kein Platz.",
      text: "Das allein hat mehr Token, als das Modell auf einmal lesen kann. Kürze es.",
    },
    invalid_request: {
      allowed: "Ein Kontingent ist eine ganze Zahl, von 0 an aufwärts.",
      assistant: "Eine Antwort ist leer oder zu lang.",
      cursor: "Diese Liste ist nicht mehr auf dem Stand des Servers. Lade die Seite neu.",
      document_ids: "Das sind zu viele Dokumente.",
      email: "Das ist keine E-Mail-Adresse.",
      examples: "Das sind zu viele Beispiele.",
      instructions: "Die Anweisungen sind leer oder zu lang.",
      name: "Der Name ist leer oder zu lang.",
      note: "Für wen es ist, das ist leer oder zu lang.",
      password: "Das Passwort ist zu kurz oder zu lang.",
      readers: "Zu einer dieser Adressen gibt es hier kein Konto.",
      scopes: "Ein Schlüssel ist für etwas da: Wähle, wofür.",
      text: "Der Text ist leer oder zu lang.",
      title: "Der Titel ist leer oder zu lang.",
      user: "Eine Frage ist leer oder zu lang.",
      words: "Darin ist kein Wort, nach dem sich suchen lässt, oder es sind zu viele.",
    },
  },
  otherwise: "Der Server hat das abgelehnt.",
  inItsWords: (words) => `In seinen eigenen Worten: „${words}“`,
  answeredBy: (status) => `Der Server antwortete ${status}.`,
  againIn: (time) => `Versuch es in ${time} noch einmal.`,
  quotas: {
    named: {
      requests_per_day: (allowed) =>
        `Das heutige Kontingent an Nachrichten ist verbraucht (${allowed} am Tag).`,
      tokens_per_day: (allowed) =>
        `Vom heutigen Kontingent an Token ist dafür zu wenig übrig (${allowed} am Tag).`,
      generations: (allowed) =>
        `${many(allowed, "deiner Antworten wird", "deiner Antworten werden")} schon geschrieben; mehr zugleich geht nicht. Warte auf eine oder halte sie an.`,
      sockets: (allowed) =>
        `Du hast ${many(allowed, "Seite", "Seiten")} offen; mehr geht nicht. Schließ eine.`,
      stored_bytes: (allowed) =>
        `Deine Unterhaltungen füllen die ${allowed}, die du speichern darfst. Lösch einige.`,
      kept_warm_bytes: (allowed) =>
        `Mehr als ${allowed} darfst du nicht warm halten, und das ist vergeben. Lass erst eine andere Unterhaltung ruhen.`,
    },
    otherwise: (allowed) => `Dein Kontingent von ${allowed} ist verbraucht.`,
    until: (time) => `Platz ist wieder ab ${time}.`,
  },
};

export default de;
