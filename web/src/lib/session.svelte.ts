// Who is signed in on this page.

import { type Account, ApiError, api, onSignedOut } from "./api";
import { Drafts } from "./drafts";

export class Session {
  account = $state.raw<Account | null>(null);
  /** False until the server has told who is signed in. */
  isKnown = $state(false);
  /** The login ended by itself; the page asks for the password and goes on where it was. */
  isExpired = $state(false);
  trouble = $state.raw<ApiError | null>(null);
  /** Why the last attempt to sign out failed. */
  staying = $state.raw<ApiError | null>(null);

  constructor() {
    onSignedOut(() => this.expire());
  }

  /** Who this is by now; whether the server told. */
  async look(): Promise<boolean> {
    const before = this.account;
    try {
      const found = await api.account();
      // Who left or came meanwhile did so after this was answered.
      if (this.account === before) this.#signedIn(found);
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error.status === 401 ? null : error;
      this.isKnown ||= error.status === 401;
      return false;
    }
  }

  async signIn(email: string, password: string): Promise<void> {
    this.#signedIn(await api.login(email, password));
  }

  async setUp(token: string, email: string, name: string, password: string): Promise<void> {
    this.#signedIn(await api.setup(token, email, name, password));
  }

  /** By the link of somebody who forgot theirs. */
  async choosePassword(token: string, password: string): Promise<void> {
    this.#signedIn(await api.choosePassword(token, password));
  }

  /** Where the server is not reached, nobody is signed out, and `staying` says so. */
  async signOut(): Promise<void> {
    this.staying = null;
    try {
      await api.logout();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.staying = error.status === 401 ? null : error;
      if (this.staying) return;
    }
    this.gone();
  }

  /** What is told of the account is different now. */
  changed(account: Account): void {
    this.account = account;
  }

  /** The account is not there any more. */
  gone(): void {
    if (this.account) new Drafts(this.account.id, localStorage).clearAll();
    this.account = null;
  }

  expire(): void {
    if (this.account === null) return;
    this.isExpired = true;
    this.account = null;
  }

  #signedIn(account: Account): void {
    this.account = account;
    this.isKnown = true;
    this.isExpired = false;
    this.trouble = null;
    this.staying = null;
  }
}
