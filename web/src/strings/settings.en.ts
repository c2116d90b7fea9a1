// English, and the form that every other language has. Numbers and dates come in written out.

import { many } from "./language";

export default {
  settings: "Settings",
  sections: "Sections",
  close: "Close",
  back: "Back",
  save: "Save",
  saved: "Saved.",
  edit: "Edit",
  delete: "Delete",
  archive: "Archive",
  unarchive: "Offer again",
  archived: "archived",
  loading: "Loading…",
  tryAgain: "Try again",
  more: (name: string) => `More about “${name}”`,

  general: "General",
  personas: "Personas",
  documents: "Documents",
  account: "Account",
  logins: "Logins",
  keys: "API keys",
  usage: "Usage",

  // ---------------------------------------------------------------- general
  language: "Language",
  theme: "Appearance",
  themes: { system: "System", light: "Light", dark: "Dark" },
  prepare: "Prepare while I type",
  prepareWhat:
    "What you are typing goes to the server a little ahead of Enter, so that it is read by then and the answer comes sooner. It is held in memory only and never stored. What is computed for it counts as use, also of text that you then change.",

  // ---------------------------------------------------------------- the library
  tokens: (tokens: string, isOne: boolean) => (isOne ? "1 token" : `${tokens} tokens`),
  tokensOrMore: (tokens: string) => `${many(tokens, "token", "tokens")} or more`,
  notCounted: "not counted yet",
  warm: "kept warm",
  version: (version: string) => `version ${version}`,
  published: { listed: "published to some", everybody: "published to everybody" },
  showArchived: "Show archived ones",

  personasLead:
    "A persona tells the model who it is. It stands at the head of a conversation, is computed once, and is read from the cache from then on.",
  newPersona: "New persona",
  noPersonas: "None of your own yet.",
  editPersona: "Edit the persona",
  persona: "Persona",
  name: "Name",
  instructions: "Instructions",
  instructionsHint: "Who it is, how it answers, what it leaves out.",
  examples: "Examples",
  examplesHint: "Questions with the answers that it should take after.",
  example: (number: string) => `Example ${number}`,
  question: "Question",
  answer: "Answer",
  addExample: "Add an example",
  removeExample: (number: string) => `Remove example ${number}`,
  brings: "Documents that come with it",
  newVersion:
    "Saving makes a new version. New conversations take it; those that there are stay with theirs, and stay warm.",
  newVersionForAll: "This is published: the new version is offered to everybody who may read it.",
  deletePersona: "Delete this persona?",
  deletePersonaWhat: (name: string) =>
    `“${name}” and all of its versions will be gone. While a conversation is under it, it cannot be deleted; archive it then.`,

  documentsLead:
    "A document is read whole, once, and asked about as often as you like. It stands at the head of a conversation, in front of everything that is said.",
  newDocument: "Write a document",
  upload: "Upload a file",
  uploadWhat: "PDF, HTML, Markdown or text",
  reading: (name: string) => `“${name}” is being read…`,
  noDocuments: "None of your own yet.",
  editDocument: "Edit the document",
  document: "Document",
  title: "Title",
  text: "Text",
  textHint: "What the model reads.",
  extracted: (name: string) => `This is the text of “${name}”. Look it over before you keep it.`,
  pages: (pages: string, isOne: boolean) => (isOne ? "One page." : `${pages} pages.`),
  deleteDocument: "Delete this document?",
  deleteDocumentWhat: (name: string) =>
    `“${name}” and all of its versions will be gone. While a conversation or a persona has it, it cannot be deleted; archive it then.`,

  // ---------------------------------------------------------------- who may use it
  whoMay: "Who may use it",
  access: { owner: "Only me", listed: "These groups and people", everybody: "Everybody here" },
  mayUse: {
    owner: "Only you may use it.",
    listed: "It is published to you, or to a group that you are in.",
    everybody: "Everybody here may use it.",
  },
  groups: "Groups",
  noGroups: "There are none yet. Groups are made in the administration.",
  members: (count: string, isOne: boolean) => (isOne ? "1 member" : `${count} members`),
  people: "People",
  peopleHint: "Their email addresses, one a line.",
  publication: "Publication",
  publicationWhat:
    "What is set here holds from the next turn on, also in conversations that there are.",
  allow: "Set who may use it",
  publishCopy: "Publish a copy",
  publishCopyWhat:
    "This one stays yours alone. The copy says what stands above, and every administrator can edit it.",
  publish: "Publish",
  narrower: (name: string) =>
    `“${name}” is published to fewer people than this persona. Who may not read it cannot begin with the persona either.`,

  // ---------------------------------------------------------------- old versions
  versions: "Versions",
  versionsStay: "Conversations stay with the version that they began with.",
  versionNamed: (version: string) => `Version ${version}`,
  newest: "newest",
  by: (email: string) => `by ${email}`,
  takeUp: "Take up again",
  takeUpWhat: "This makes a new version that says the same.",

  // ---------------------------------------------------------------- what a conversation begins with
  beginWith: "Begin with",
  change: "Change what this conversation begins with",
  done: "Done",
  noneToPick: "There are none yet.",
  pickedDocuments: (count: string, isOne: boolean) => (isOne ? "1 document" : `${count} documents`),
  comesAlong: "comes with the persona",
  weight: (tokens: string) => `At the head: ${tokens}.`,
  weightWarm: (tokens: string) =>
    `Of these ${tokens} ${tokens === "1" ? "is" : "are"} kept warm for everybody.`,
  weightOnce: "The first conversation reads it; every later one finds it in the cache.",
  beganWith: "What this conversation began with",
  moveOn: "Take the newest version",
  moveOnWhat: "The next turn reads the new head once; from then on it is found in the cache.",
  manage: "Manage",

  // ---------------------------------------------------------------- the account
  accountLead: "Who you are here.",
  email: "Email",
  role: "Role",
  roles: { admin: "Administrator", member: "Member", auditor: "Auditor" } as Readonly<
    Record<string, string>
  >,
  password: "Password",
  currentPassword: "Current password",
  newPassword: "New password",
  passwordHint: "At least 8 characters. Everywhere else you will be signed out; keys stay.",
  changePassword: "Change the password",
  passwordChanged: "The password is changed, and you are signed out everywhere else.",
  noPassword: "You sign in by a provider, so there is no password here.",
  waysIn: "Signing in elsewhere",
  link: (provider: string) => `Link ${provider}`,
  unlink: "Unlink",
  unlinkNamed: (label: string) => `Unlink ${label}`,
  takeOut: "Export everything",
  takeOutWhat: "All conversations with every branch, as one file that can be imported again.",
  download: "Download",
  remove: "Remove the account",
  removeWhat:
    "Your conversations, personas, documents and keys will be gone for good, and what the engine keeps of them too. What you published for others stays.",
  removeAsk: "Remove your account?",
  removeSure: "There is no way back. Take your conversations out first if you want to keep them.",
  removeByLogin:
    "You have no password here. If you signed in more than ten minutes ago, sign out and in once more, and then come back.",

  // ---------------------------------------------------------------- logins
  loginsLead: "Where you are signed in. A login ends by itself after two weeks without use.",
  thisOne: "this one",
  on: (browser: string, system: string) => `${browser} on ${system}`,
  unknownBrowser: "A browser",
  unknownSystem: "an unknown system",
  lastSeen: (when: string) => `Last used ${when}`,
  since: (when: string) => `since ${when}`,
  end: "Sign out",
  endNamed: (name: string) => `Sign out ${name}`,
  endOthers: "Sign out everywhere else",
  onlyHere: "You are signed in here only.",

  // ---------------------------------------------------------------- keys
  keysLead:
    "With a key, programs use Keepwarm as you: every SDK of OpenAI does, at the address below.",
  address: "Address",
  newKey: "New key",
  keyName: "What it is for",
  scopes: "What it may do",
  scopeNames: {
    read: "Read: models, and what is stored",
    write: "Write: ask, stop, delete, open the socket",
    figures: "See figures: the server’s metrics",
  } as Readonly<Record<string, string>>,
  scopeShort: { read: "read", write: "write", figures: "figures" } as Readonly<
    Record<string, string>
  >,
  lasts: "How long it lasts",
  lifetimes: {
    week: "A week",
    month: "30 days",
    quarter: "90 days",
    year: "A year",
    ever: "Until it is revoked",
  },
  makeKey: "Make the key",
  keyOnce: "This is the only time that the key is shown. Copy it now.",
  yourKey: "Your new key",
  copy: "Copy",
  copied: "Copied",
  noKeys: "There are no keys.",
  neverUsed: "never used",
  lastUsed: (when: string) => `last used ${when}`,
  expires: (when: string) => `ends ${when}`,
  expired: (when: string) => `ended ${when}`,
  revoke: "Revoke",
  revokeNamed: (name: string) => `Revoke ${name}`,
  revokeAsk: "Revoke this key?",
  revokeWhat: (name: string) =>
    `Programs that use “${name}” are shut out at once, and this cannot be undone.`,

  // ---------------------------------------------------------------- use
  usageLead: "What you used, and what you may use. What is found in the cache costs nothing.",
  quotas: {
    requests_per_day: "Turns today",
    tokens_per_day: "Tokens today",
    generations: "Answers at once",
    sockets: "Open connections",
    stored_bytes: "Stored text",
    kept_warm_bytes: "Kept warm",
  } as Readonly<Record<string, string>>,
  usedOf: (used: string, allowed: string) => `${used} of ${allowed}`,
  unlimited: (used: string) => `${used}, no limit`,
  upTo: (allowed: string) => `up to ${allowed}`,
  noLimit: "no limit",
  resets: (when: string) => `Begins anew ${when}`,
  days: "The last 30 days",
  day: "Day",
  turns: "Turns",
  computed: "Read anew",
  cached: "From the cache",
  written: "Written",
  noDays: "Nothing yet.",
  savedShare: (share: string) => `${share} of what was read came from the cache.`,
};
