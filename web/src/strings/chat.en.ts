// English, and the form that every other language has. Numbers come in already written out.

export default {
  // ---------------------------------------------------------------- everywhere
  loading: "Keepwarm is loading.",
  tryAgain: "Try again",
  cancel: "Cancel",
  delete: "Delete",
  stop: "Stop",
  send: "Send",

  // ---------------------------------------------------------------- the list of conversations
  conversations: "Conversations",
  newConversation: "New conversation",
  openList: "Open the list of conversations",
  closeList: "Close the list",
  search: "Search",
  searchAll: "Search in all messages",
  found: "Found messages",
  showMore: "Show more",
  noneFound: "No message has these words.",
  listFailed: "The list could not be loaded.",
  listEmpty: "Conversations will gather here.",
  archive: "Archive",
  archiveEmpty: "Nothing is archived.",
  backToList: "Back to the list",
  showOlder: "Show older ones",
  pinned: "Pinned",
  today: "Today",
  yesterday: "Yesterday",
  pastWeek: "Past week",
  older: "Older",
  moreAbout: (title: string) => `More about “${title}”`,
  beingWritten: "An answer is being written",
  keptWarm: "Kept warm",
  rename: "Rename",
  renameMore: "Rename…",
  renameTitle: "Rename the conversation",
  title: "Title",
  pin: "Pin",
  unpin: "Unpin",
  keepWarm: "Keep it warm",
  letRest: "Let it rest",
  doArchive: "Archive",
  unarchive: "Back into the list",
  exportReadable: "Export to read",
  exportWhole: "Export whole",
  deleteMore: "Delete…",
  deleteConversation: "Delete this conversation?",
  deleteConversationWhat: (title: string) =>
    `“${title}” and everything in it will be gone, and what the engine kept of it too.`,

  // ---------------------------------------------------------------- you
  you: "You and your conversations",
  bringIn: "Bring conversations in…",
  takeOut: "Take all conversations out",
  signOut: "Sign out",
  findAndDo: "Find and do",
  paletteKey: "Ctrl K",
  dashboard: "What the cache does",
  keys: "Keys on the keyboard",
  importFile: "File of conversations",
  reading: (file: string) => `“${file}” is being read…`,
  cameIn: (conversations: string, messages: string) =>
    `Conversations that came in: ${conversations}, with ${messages} messages.`,

  // ---------------------------------------------------------------- the conversation
  conversation: "Conversation",
  conversationLoading: "The conversation is loading.",
  conversationGone: "This conversation is not here any more.",
  startNew: "Start a new one",
  question: "What shall we talk about?",
  promise: "Every turn computes only what is new. The rest is kept warm.",
  starters: [
    "Explain why the sky is blue, in three sentences.",
    "Give me a simple recipe for lentil soup.",
    "Write a short poem about a fire that is kept through the night.",
  ],
  toEnd: "Go to the newest words",
  model: "The model that answers",
  answering: "Keepwarm is answering.",
  answerComplete: "The answer is complete.",
  answerStopped: "The answer was stopped.",
  answerFailed: "The answer failed.",

  // ---------------------------------------------------------------- one message
  youSaid: "You",
  readingNew: "Reading what is new…",
  notSentYet: "Not sent yet.",
  stopped: "Stopped.",
  failed: "This answer failed.",
  interrupted: "The server was stopped in mid-answer; this is what it had saved.",
  cutOff: "Cut off: the longest answer that is allowed was reached.",
  goOn: "Continue",
  versions: "Versions",
  versionBefore: "The version before",
  versionAfter: "The next version",
  copy: "Copy",
  copied: "Copied",
  copyRefused: "Not allowed",
  again: "Answer once more",
  edit: "Edit",
  editMessage: "Edit the message",
  fork: "Go on from here in a new conversation",
  prune: "Delete from here on",
  deleteAnswer: "Delete this answer?",
  deleteMessage: "Delete this message?",
  deleteFollowing: "What follows it goes with it.",
  deleteOthersStay: "Its other versions stay.",
  table: "Table",
  image: (words: string) => `Image: ${words}`,

  // ---------------------------------------------------------------- writing
  message: "Message",
  writeMessage: "Write a message",
  stopAnswer: "Stop the answer",
  stopKey: "Stop (Esc)",
  enterSends: "sends,",
  enterBreaks: "starts a new line",
  prepare: "Prepare while I type",
  prepareWhat: "unsent text goes to the server, and is never stored there",
  contextFull: (percent: string) => `${percent} % of the context`,
  contextUsed: (tokens: string, limit: string) =>
    `This conversation takes ${tokens} of the ${limit} tokens that the model can read at once.`,
  contextNearly: "It is nearly full. After that you can go on with a summary of it.",
  typedAbout: (tokens: string) => `What you have written is about ${tokens} tokens.`,
  kept: "What you wrote is kept.",
  tooLong: (tokens: string, room: string) =>
    `This is about ${tokens} tokens, and there is room for ${room}. It will not fit.`,
  againIn: (time: string) => `Try again in ${time}.`,
  summarise: "Go on with a summary",
  summarising: "A summary is being written; a new conversation will begin with it.",

  // ---------------------------------------------------------------- the line to the server
  connecting: "Connecting again. Answers go on without you, and nothing is lost.",
  slowRoad: "Something on the way blocks websockets; a slower road is used instead.",
  updated: "Keepwarm was updated.",
  reload: "Load the page anew",
  lost: "The connection was lost.",
  emptyStream: "The answer’s stream is empty.",
  restarting: "Keepwarm is restarting. Your answers go on afterwards, and nothing is lost.",
  answeredBy: (status: number) => `The server answered ${status}.`,

  // ---------------------------------------------------------------- what went wrong
  /** By its code; what is not here is told in the server's words. */
  faults: {
    unreached: "Keepwarm cannot be reached right now.",
    unavailable: "The engine is away for a moment.",
    rate_limit_exceeded: "That was much at once.",
    context_length_exceeded:
      "With the conversation before it, this has more tokens than the model can read at once.",
    parent_moved:
      "This conversation went on elsewhere meanwhile, and is shown now as it is. Send again if it still fits.",
    turn_in_progress: "An answer is still being written here. Wait for it, or stop it.",
    not_continuable: "This answer cannot be gone on with; it can be asked for once more.",
    summary_stopped: "The summary was stopped.",
    not_found: "This is not here any more.",
    bad_credentials: "The address or the password is wrong.",
    account_disabled: "This account is disabled.",
    invalid_link: "This link was used or revoked, or is too old.",
    forbidden: "You may not do this.",
    server_error: "Something went wrong on the server.",
  },
  quotas: {
    named: {
      requests_per_day: (allowed: string) =>
        `Today’s quota of messages is used up (${allowed} a day).`,
      tokens_per_day: (allowed: string) =>
        `Today’s quota of tokens has too few left for this (${allowed} a day).`,
      generations: (allowed: string) =>
        `${allowed} of your answers are being written, and more at once are not allowed. Wait for one, or stop it.`,
      sockets: (allowed: string) =>
        `You have ${allowed} pages open, and more are not allowed. Close one.`,
      stored_bytes: (allowed: string) =>
        `Your conversations fill the ${allowed} that you may store. Delete some to make room.`,
      kept_warm_bytes: (allowed: string) =>
        `You may keep ${allowed} warm, and that is taken. Let another conversation rest first.`,
    },
    otherwise: (allowed: string) => `Your quota of ${allowed} is used up.`,
    until: (time: string) => `There is room again from ${time}.`,
  },

  // ---------------------------------------------------------------- what a turn cost
  underMs: "under 1 ms",
  newTokens: (tokens: string) => `${tokens} new`,
  fromCache: (tokens: string) => `${tokens} from cache`,
  firstToken: (time: string) => `first token ${time}`,
  prompt: (tokens: string) => `A prompt of ${tokens} tokens`,
  sources: {
    template: "from the model’s own opening, shared",
    persona: "from the persona, shared",
    document: "from a document, shared",
    session: "from this conversation",
    computed: "new",
  },
  restored: (tokens: string) => `${tokens} of the tokens from the cache were parked, and fetched.`,
  differsAt: (token: string) => `The first token that differs is number ${token}.`,
  times: (waited: string, read: string, tokens: string, wrote: string) =>
    `Waited ${waited}, read what was new in ${read}, wrote ${tokens} tokens in ${wrote}`,
  speed: (tokens: string) => `${tokens} a second`,
  misses: {
    first_turn: "This was the conversation’s first turn, so nothing of it was warm yet.",
    new_branch: "This turn left the earlier branch, so what follows the fork was new.",
    input_changed: "The history that was sent differs from the one that was warm.",
    instructions_changed: "The instructions changed, so everything after them was computed anew.",
    template_changed: "The chat template changed, so the history was computed anew once.",
    model_changed: "The model changed, so the history was computed anew once.",
    evicted_idle: "The conversation rested for long and made room for others.",
    evicted_pressure: "Memory was needed for other conversations.",
    evicted_quota: "The share of memory for one user was used up.",
    engine_restart: "The engine was started anew and had forgotten this conversation.",
    below_granularity: "What could be reused was smaller than the smallest unit kept.",
  },
  warmth: { warm: "warm", parked: "parked", cold: "cold" },
  isWarm: (tokens: string) =>
    `${tokens} tokens of it are ready: the next turn computes only what is new.`,
  isPartlyWarm: (ready: string, rest: string) =>
    `${ready} tokens of it are ready: the next turn computes the other ${rest} and what is new.`,
  isParked: (tokens: string) =>
    `${tokens} tokens of it are parked: the next turn fetches them first.`,
  isCold: "It has cooled down: the next turn computes it again, once.",
};
