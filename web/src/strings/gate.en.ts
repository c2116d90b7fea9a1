// English, and the form that every other language has.

export default {
  signIn: "Sign in",
  signingIn: "Signing in…",
  lead: "Your conversations are where you left them, still warm.",
  leadExpired: "Your login has ended. Sign in again; what you were writing is kept.",
  email: "Email",
  password: "Password",
  signInWith: (provider: string) => `Sign in with ${provider}`,
  continueWith: (provider: string) => `Continue with ${provider}`,

  setUp: "Welcome to Keepwarm",
  setUpLead: "This link makes your account. It works once.",
  name: "Your name",
  passwordHint: "At least 8 characters; a few unrelated words are better than symbols.",
  create: "Create the account",
  creating: "Setting up…",
  incompleteLink: "This link is not complete",
  incompleteLinkLead:
    "Open the whole link, as you were given it or as Keepwarm printed it when it started: it ends in “#token=…”.",
  newPassword: "Choose a new password",
  newPasswordLead: "This link works once. It signs you in here, and out everywhere else.",
  setPassword: "Set the password",
  signInInstead: "Sign in instead",

  /** Why somebody came back from a provider without being signed in, where it is said otherwise here. */
  refusals: {
    invalid_link: "This invitation was used or revoked, or is too old.",
    provider_unavailable: "It cannot be reached right now. Try again in a moment.",
    rate_limit_exceeded: "Too many attempts to sign in. Try again in a moment.",
  } as Readonly<Record<string, string>>,
  refused: "You could not be signed in this way.",
};
