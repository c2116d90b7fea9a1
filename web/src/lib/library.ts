// What a conversation may begin with: personas and documents, and which of them were chosen.

/** One in a list, at its newest version. */
export interface Item {
  readonly id: string;
  readonly name: string;
  readonly visibility: "owner" | "listed" | "everybody";
  readonly version: number;
  readonly is_archived: boolean;
  readonly is_editable: boolean;
  /** Null: no model has read it yet. */
  readonly tokens: number | null;
  /** Of a persona: the documents that come with it. */
  readonly document_ids: readonly string[];
  readonly is_warm: boolean;
}

/** What a conversation that is not made yet will begin with. Without a persona: the server's own. */
export interface Head {
  readonly persona: Item | null;
  readonly documents: readonly Item[];
}

/** The persona that a conversation has where nothing was chosen. */
export const STANDARD = "persona_default";

export const NO_HEAD: Head = { persona: null, documents: [] };

/** As the server asks for it; what is left out is its own choice. */
export interface HeadIds {
  readonly persona_id?: string;
  readonly document_ids?: readonly string[];
}

export function idsOf({ persona, documents }: Head): HeadIds {
  return {
    ...(persona === null ? {} : { persona_id: persona.id }),
    ...(documents.length === 0 ? {} : { document_ids: documents.map(({ id }) => id) }),
  };
}

/** What a conversation was made with. */
export interface Made {
  readonly persona_id: string | null;
  readonly persona_version: number | null;
  readonly document_ids: readonly string[];
}

/** Whether there was a choice that is worth telling of. */
export const wasChosen = ({ persona_id, document_ids }: Made): boolean =>
  (persona_id !== null && persona_id !== STANDARD) || document_ids.length > 0;

export interface Weight {
  readonly tokens: number;
  /** Of these, what is kept computed for everybody. */
  readonly warm_tokens: number;
  /** Something has not been counted yet. */
  readonly isMore: boolean;
}

/** What a head comes to, the documents that its persona brings included, each once. */
export function weightOf({ persona, documents }: Head, known: readonly Item[]): Weight {
  const brought = new Set(persona?.document_ids);
  const all = [
    ...(persona === null ? [] : [persona]),
    ...known.filter(({ id }) => brought.has(id)),
    ...documents.filter(({ id }) => !brought.has(id)),
  ];
  const sum = (items: readonly Item[]): number =>
    items.reduce((tokens, item) => tokens + (item.tokens ?? 0), 0);
  const isHidden = [...brought].some((id) => !known.some((item) => item.id === id));
  return {
    tokens: sum(all),
    warm_tokens: sum(all.filter((item) => item.is_warm)),
    isMore: isHidden || all.some(({ tokens }) => tokens === null),
  };
}
