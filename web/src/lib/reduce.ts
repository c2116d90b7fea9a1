// What a conversation looks like after one more frame. Pure: no clock, no network, no component.
//
// A response is read from its log: events in order, each number once. A number that was seen is
// dropped (double), a number too high is not applied (gap: the reading asks to be resumed), another
// epoch means another log (the reading is given up), and a snapshot replaces whatever was held.

import type {
  ConversationView,
  Cursor,
  Event,
  MessageView,
  OutwardFrame,
  ResponseStatus,
  ResponseView,
  Snapshot,
} from "../generated/events";
import { tip } from "./tree";

export type { ConversationView, MessageView, Receipt } from "../generated/events";

/** How far one response's log has been read, and the text up to there. */
export interface Reading {
  readonly epoch: string;
  readonly after: number;
  readonly text: string;
}

export interface State {
  readonly conversation: ConversationView | null;
  readonly messages: Readonly<Record<string, MessageView>>;
  readonly readings: Readonly<Record<string, Reading>>;
  /** Responses whose next event was not the one that came: subscribe again. */
  readonly gaps: readonly string[];
}

/** What `GET /api/conversations/{id}` said: everything from its oldest message on. */
export interface Loaded {
  readonly type: "loaded";
  readonly conversation: ConversationView;
  readonly messages: readonly MessageView[];
}

export const EMPTY: State = { conversation: null, messages: {}, readings: {}, gaps: [] };

const ENDED: ReadonlySet<ResponseStatus> = new Set([
  "completed",
  "incomplete",
  "cancelled",
  "failed",
]);

export const ended = (status: ResponseStatus): boolean => ENDED.has(status);

export function reduce(state: State, frame: OutwardFrame | Loaded): State {
  switch (frame.type) {
    case "loaded":
      return loaded(state, frame);
    case "turn.accepted":
      return answering(frame.message ? added(state, frame.message) : state, frame.response);
    case "message.added":
      return added(state, frame.message);
    case "messages.deleted":
      return without(state, new Set(frame.message_ids));
    case "leaf.chosen":
      return chosen(state, frame.leaf_id);
    case "event":
      return read(state, frame);
    case "snapshot":
      return replaced(state, frame);
    case "conversation.changed":
      return { ...state, conversation: frame.conversation };
    default:
      return state;
  }
}

/** The conversation that a frame is about; null: none, or all. */
export function conversationOf(frame: OutwardFrame | Loaded): string | null {
  switch (frame.type) {
    case "loaded":
    case "conversation.changed":
      return frame.conversation.id;
    case "message.added":
      return frame.message.conversation_id;
    case "turn.accepted":
    case "snapshot":
      return frame.response.conversation_id;
    case "event":
    case "leaf.chosen":
    case "messages.deleted":
      return frame.conversation_id;
    default:
      return null;
  }
}

/** The leaf that the user sees: where the next turn goes. */
export function leafOf(state: State): string | null {
  return tip(state.messages, state.conversation?.leaf_id ?? null);
}

/** The text of a message: what the log has told so far, or what is stored where that is longer. */
export function textOf(state: State, message: MessageView): string {
  const response = message.response;
  const reading = response && !ended(response.status) ? state.readings[response.id] : undefined;
  if (!reading || message.text.startsWith(reading.text)) return message.text;
  return reading.text;
}

/** Responses of this conversation that go on. */
export function live(state: State): ResponseView[] {
  return Object.values(state.messages)
    .map((message) => message.response)
    .filter((response) => response !== null && !ended(response.status))
    .filter((response) => response !== null);
}

/** Where to go on reading; a response that was never read is asked for as a snapshot. */
export function cursors(state: State): Cursor[] {
  return live(state).map(({ id }) => {
    const reading = state.readings[id];
    return { response_id: id, after: reading?.after ?? -1, epoch: reading?.epoch ?? "" };
  });
}

// A response that ended stays ended, and a message that came while this was on its way stays,
// whichever answer is late. What the list lacks though it is older was deleted meanwhile.
function loaded(state: State, { conversation, messages }: Loaded): State {
  const listed = new Set(messages.map(({ id }) => id));
  const newest = Math.max(...messages.map((message) => message.created_at));
  const gone = Object.values(state.messages)
    .filter(({ id, created_at }) => !listed.has(id) && created_at <= newest)
    .map(({ id }) => id);
  const start = without({ ...state, conversation }, new Set(gone));
  return messages.reduce(added, start);
}

/** Messages that are older than all that are here. */
export const earlier = (state: State, messages: readonly MessageView[]): State =>
  messages.reduce(added, state);

function without(state: State, gone: ReadonlySet<string>): State {
  if (gone.size === 0) return state;
  const kept = Object.entries(state.messages).filter(([id]) => !gone.has(id));
  return { ...state, messages: Object.fromEntries(kept) };
}

function chosen(state: State, leaf_id: string): State {
  const { conversation } = state;
  return conversation ? { ...state, conversation: { ...conversation, leaf_id } } : state;
}

function added(state: State, message: MessageView): State {
  const known = state.messages[message.id];
  const late = known?.response && ended(known.response.status) && !isEnded(message);
  if (late) return state;
  return { ...state, messages: { ...state.messages, [message.id]: message } };
}

function isEnded(message: MessageView): boolean {
  return message.response !== null && ended(message.response.status);
}

/** The assistant's message of `response`, made where it is not known yet. */
function answering(state: State, response: ResponseView, text?: string): State {
  if (state.conversation && response.conversation_id !== state.conversation.id) return state;
  const known = state.messages[response.message_id];
  return added(state, {
    id: response.message_id,
    conversation_id: response.conversation_id ?? "",
    parent_id: response.parent_id,
    role: "assistant",
    created_at: response.created_at,
    client_message_id: null,
    ...known,
    text: text ?? known?.text ?? "",
    response,
  });
}

function read(state: State, frame: Event): State {
  const { response_id: id, epoch, event } = frame;
  const known = state.readings[id];
  const reading = known?.epoch === epoch ? known : undefined;
  const number = event.sequence_number;
  if (number > (reading?.after ?? -1) + 1) return gap(state, id, known !== reading);
  if (reading && number <= reading.after) return state;
  return told(state, frame, reading?.text ?? "");
}

/** The next event, applied to the text before it. */
function told(state: State, { response_id: id, epoch, event }: Event, before: string): State {
  const number = event.sequence_number;
  switch (event.type) {
    case "response.created":
    case "response.in_progress":
      return marked(answering(state, event.response), id, epoch, number, before);
    case "response.output_text.delta":
      return marked(state, id, epoch, number, before + event.delta);
    case "response.ended":
      return marked(answering(state, event.response, event.text), id, epoch, number, event.text);
    default:
      return marked(state, id, epoch, number, before);
  }
}

function replaced(state: State, snapshot: Snapshot): State {
  const { response, epoch, text, sequence_number } = snapshot;
  return marked(answering(state, response, text), response.id, epoch, sequence_number, text);
}

function marked(state: State, id: string, epoch: string, after: number, text: string): State {
  return {
    ...state,
    readings: { ...state.readings, [id]: { epoch, after, text } },
    gaps: state.gaps.includes(id) ? state.gaps.filter((other) => other !== id) : state.gaps,
  };
}

function gap(state: State, id: string, foreign: boolean): State {
  const gaps = state.gaps.includes(id) ? state.gaps : [...state.gaps, id];
  if (!foreign) return { ...state, gaps };
  const { [id]: _, ...readings } = state.readings;
  return { ...state, readings, gaps };
}
