import type en from "./gate.en";

const de: typeof en = {
  signIn: "Anmelden",
  signingIn: "Anmeldung läuft …",
  lead: "Deine Unterhaltungen sind, wo du sie gelassen hast, und noch warm.",
  leadExpired: "Deine Anmeldung ist abgelaufen. Melde dich neu an; dein Entwurf ist noch da.",
  email: "E-Mail",
  password: "Passwort",
  signInWith: (provider) => `Mit ${provider} anmelden`,
  continueWith: (provider) => `Mit ${provider} weiter`,

  setUp: "Willkommen bei Keepwarm",
  setUpLead: "Dieser Link legt dein Konto an. Er gilt einmal.",
  name: "Dein Name",
  passwordHint:
    "Mindestens 8 Zeichen; ein paar Wörter ohne Zusammenhang sind besser als Sonderzeichen.",
  create: "Konto anlegen",
  creating: "Wird eingerichtet …",
  incompleteLink: "Dieser Link ist unvollständig",
  incompleteLinkLead:
    "Öffne den ganzen Link, so wie du ihn bekommen hast oder wie Keepwarm ihn beim Start ausgegeben hat: Er endet auf „#token=…“.",
  newPassword: "Wähle ein neues Passwort",
  newPasswordLead: "Dieser Link gilt einmal. Er meldet dich hier an und überall sonst ab.",
  setPassword: "Passwort setzen",
  signInInstead: "Stattdessen anmelden",

  refusals: {
    invalid_link: "Diese Einladung wurde benutzt oder zurückgezogen oder ist zu alt.",
    provider_unavailable: "Dort ist gerade niemand zu erreichen. Versuch es gleich noch einmal.",
    rate_limit_exceeded: "Zu viele Versuche. Versuch es gleich noch einmal.",
  },
  refused: "So konntest du nicht angemeldet werden.",
};

export default de;
