// What can be done from the palette, in the page's words. Loaded with it.

import { others, choose } from "../strings/language";
import { strings } from "../strings/palette";
import { type Account, type Changes, EXPORT_ALL, exportPath } from "./api";
import { copyText, download } from "./clipboard";
import type { Command } from "./commands";
import type { ConversationView, MessageView } from "./reduce";

/** What the page looks at when the palette opens, and what it does when asked. */
export interface Stage {
  readonly account: Account;
  readonly conversation: ConversationView | null;
  /** The last answer and its text; null where there is none, or it is still written. */
  readonly answer: { readonly message: MessageView; readonly text: string } | null;
  readonly isAnswering: boolean;
  readonly isBusy: boolean;
  start(): void;
  stop(): void;
  regenerate(message: MessageView): void;
  fork(message: MessageView): void;
  summarise(): void;
  change(id: string, changes: Changes): void;
  keys(): void;
  settings(): void;
  signOut(): void;
}

export function actionsOn(stage: Stage): Command[] {
  const { conversation } = stage;
  return [
    { id: "new", name: strings.newConversation, run: () => stage.start() },
    ...(stage.isAnswering ? [{ id: "stop", name: strings.stop, run: () => stage.stop() }] : []),
    ...onAnswer(stage),
    ...(conversation ? onConversation(stage, conversation) : []),
    { id: "keys", name: strings.keys, run: () => stage.keys() },
    { id: "settings", name: strings.settings, run: () => stage.settings() },
    ...onPage(stage),
  ];
}

function onAnswer({ answer, isBusy, ...stage }: Stage): Command[] {
  if (!answer) return [];
  const { message, text } = answer;
  const copy: Command = { id: "copy", name: strings.copyAnswer, run: () => void copyText(text) };
  if (isBusy) return [copy];
  return [
    { id: "again", name: strings.again, run: () => stage.regenerate(message) },
    copy,
    { id: "fork", name: strings.fork, run: () => stage.fork(message) },
    { id: "summary", name: strings.summarise, run: () => stage.summarise() },
  ];
}

function onConversation(stage: Stage, shown: ConversationView): Command[] {
  const change = (changes: Changes) => () => stage.change(shown.id, changes);
  return [
    {
      id: "pin",
      name: shown.pinned ? strings.unpin : strings.pin,
      run: change({ pinned: !shown.pinned }),
    },
    {
      id: "warm",
      name: shown.kept_warm ? strings.letRest : strings.keepWarm,
      run: change({ kept_warm: !shown.kept_warm }),
    },
    {
      id: "archive",
      name: shown.archived ? strings.unarchive : strings.archive,
      run: change({ archived: !shown.archived }),
    },
    {
      id: "read",
      name: strings.exportReadable,
      run: () => download(exportPath(shown.id, "markdown")),
    },
    {
      id: "whole",
      name: strings.exportWhole,
      run: () => download(exportPath(shown.id, "json")),
    },
  ];
}

function onPage(stage: Stage): Command[] {
  const seesFigures = stage.account.role !== "member";
  return [
    ...(seesFigures
      ? [{ id: "admin", name: strings.dashboard, run: () => location.assign("/admin") }]
      : []),
    { id: "out", name: strings.takeOut, run: () => download(EXPORT_ALL) },
    ...others.map(([tag, name]) => ({
      id: tag,
      name: strings.speak(name),
      run: () => choose(tag),
    })),
    { id: "leave", name: strings.signOut, run: () => stage.signOut() },
  ];
}
