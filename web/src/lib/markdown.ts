// An answer as blocks of safe HTML. Blocks that are closed keep their HTML, only the last block is
// rendered again while it grows, of a list, table or code its last pieces, and half-open syntax in it is
// closed for the moment. What HTML that is, `render` knows.

import type { Tokens } from "marked";
import remend from "remend";
import {
  fast,
  goesOn,
  type Grouped,
  grouped,
  isLittle,
  isLoose,
  isPieced,
  isShut,
  loosens,
  type Piece,
  type Pieced,
  standIn,
} from "./pieces";
import {
  cellsOf,
  type Direction,
  direction,
  languageOf,
  marked,
  REMEND,
  type SafeHtml,
  sanitised,
} from "./render";

interface Base {
  readonly key: number;
  /** Nothing in it will change any more. */
  readonly closed: boolean;
}

/** It and a row are the same objects for as long as nothing in them changes. */
export interface Item {
  readonly dir: Direction;
  readonly html: SafeHtml;
}

export interface Row {
  readonly cells: readonly SafeHtml[];
}

export interface Line {
  readonly text: string;
}

interface Html extends Base {
  readonly kind: "html";
  readonly html: SafeHtml;
}

export interface List extends Base {
  readonly kind: "list";
  readonly dir: Direction;
  readonly ordered: boolean;
  readonly start: number | undefined;
  readonly pieces: readonly Item[];
}

export interface Table extends Base {
  readonly kind: "table";
  readonly dir: Direction;
  readonly sides: readonly string[];
  readonly head: Row;
  readonly pieces: readonly Row[];
}

/** Code that no line has closed yet; then it is HTML. */
export interface Code extends Base {
  readonly kind: "code";
  readonly language: string;
  readonly pieces: readonly Line[];
}

export type Block = Html | List | Table | Code;

/** What was rendered, and from what. */
type Made<T> = T & { readonly raw: string; readonly isLoose: boolean };
type MadePiece = Made<Item> | Made<Row> | Made<Line>;
type Kept = Block & { readonly raw: string };

/** The first pieces of the first open block, which stand fast. */
interface Fast {
  readonly token: Pieced;
  readonly pieces: readonly MadePiece[];
  readonly isLoose: boolean;
  /** One of them makes the list loose. */
  readonly loosens: boolean;
  /** Where the block begins in the text. */
  readonly from: number;
}

interface Standing {
  readonly closed: boolean;
  /** Its end is the end of the text, which goes on. */
  readonly growing: boolean;
}

// The last line may still join the block before it ("#" after a paragraph is a heading, "#x" is that
// paragraph's text) and with it undo one more, so three blocks are read again; rendered again is
// only what changed. Three is measured: a quarter of a million mixtures of syntax, cut anywhere.
const OPEN_BLOCKS = 3;

const NO_LINKS = "{}";
const NOTHING = { source: "", stand: 0 };

/** The blocks of one answer, fed with its whole text again and again as it grows. */
export class Markdown {
  #text = "";
  #read = 0;
  #kept: Kept[] = [];
  #closed = 0;
  #fast: Fast | null = null;
  #links = NO_LINKS;
  #everLinked = false;
  /** Characters that were read, and that were rendered, since it was made. */
  readonly work = { read: 0, rendered: 0 };

  update(text: string, done: boolean): readonly Block[] {
    const whole = text.replace(/\r\n?/g, "\n");
    if (!done && this.#mayWait(whole)) return this.#kept;
    if (!whole.startsWith(this.#text) || done) this.#reset(whole, done);
    this.#text = whole;

    const { blocks, links } = this.#blocks(whole);
    this.#relink(links, done);
    // Before pieces that stand fast all does, and with code that was closed it does too.
    const long = done ? -1 : blocks.findLastIndex(({ pieces }) => fast(pieces) > 0);
    const shut = blocks.findLastIndex(({ token }) => isShut(token)) + 1;
    const closing = done ? blocks.length : Math.max(blocks.length - OPEN_BLOCKS, long, shut);
    const start = this.#closed;
    this.#kept = [
      ...this.#kept.slice(0, start),
      ...blocks.map((block, i) => {
        const closed = i < closing;
        return this.#block(start + i, block, {
          closed,
          growing: !closed && i === blocks.length - 1,
        });
      }),
    ];
    this.#closed += closing;
    this.#read += blocks.slice(0, closing).reduce((sum, { raw }) => sum + raw.length, 0);
    if (closing > 0) this.#fast = null;
    const first = blocks[closing];
    if (first && long === closing) this.#fasten(first);
    return this.#kept;
  }

  #mayWait(whole: string): boolean {
    const open = this.#text.length - this.#read;
    return isLittle(whole.length - this.#text.length, open) && whole.startsWith(this.#text);
  }

  // A link may be defined below what refers to it, also in a list or a quotation; and what looked
  // like a definition may turn out to be none.
  #relink(links: string, done: boolean): void {
    this.#everLinked ||= links !== NO_LINKS;
    if (done ? this.#everLinked : links !== this.#links)
      this.#kept = this.#kept.slice(0, this.#closed);
    this.#links = links;
  }

  // At the end all is read once more as a whole, and HTML is kept where it is the same.
  #reset(whole: string, done: boolean): void {
    if (!done || !whole.startsWith(this.#text)) this.#kept = [];
    this.#read = 0;
    this.#closed = 0;
    this.#fast = null;
  }

  /** What is open, read anew; its first block without the pieces that stand fast. */
  #blocks(whole: string): { blocks: Grouped[]; links: string } {
    const stood = this.#fast;
    const { source, stand } = stood ? standIn(stood.token, stood.isLoose) : NOTHING;
    const tokens = this.#lexed(source + whole.slice(this.#read));
    const blocks = grouped(tokens, source, stand);
    if (stood && !goesOn(stood, blocks[0])) {
      this.#read = stood.from;
      this.#fast = null;
      return this.#blocks(whole);
    }
    return { blocks, links: JSON.stringify(tokens.links) };
  }

  #lexed(source: string) {
    this.work.read += source.length;
    return marked.lexer(source);
  }

  #fasten({ token, lead, pieces }: Grouped): void {
    const kept = this.#kept[this.#closed];
    if (!isPieced(token) || !kept || kept.kind === "html") return;
    const standing = pieces.slice(0, fast(pieces));
    // A table's head and a fence are read once, and then stood in for.
    const head = this.#fast ? 0 : standIn(token, false).source.length;
    const before = this.#fast ?? {
      token,
      pieces: [],
      isLoose: isLoose(token),
      loosens: false,
      from: this.#read,
    };
    const count = before.pieces.length + standing.length;
    this.#fast = {
      ...before,
      pieces: (kept.pieces as readonly MadePiece[]).slice(0, count),
      loosens: before.loosens || loosens(standing, true),
    };
    this.#read += lead + head + standing.reduce((sum, { raw }) => sum + raw.length, 0);
  }

  // ---------------------------------------------------------------- one block

  #block(key: number, block: Grouped, standing: Standing): Kept {
    const { token } = block;
    return isPieced(token) && (standing.growing || token.type !== "code")
      ? this.#pieced(key, token, block.pieces, standing)
      : this.#whole(key, block, standing);
  }

  #whole(key: number, { raw, token }: Grouped, { closed, growing }: Standing): Kept {
    const before = this.#kept[key];
    const source = growing ? remend(raw, REMEND) : raw;
    if (before?.kind === "html" && before.raw === source)
      return before.closed === closed ? before : { ...before, closed };
    this.work.rendered += source.length;
    const html = growing ? marked.parse(source, { async: false }) : marked.parser([token]);
    return { key, kind: "html", raw: source, html: sanitised(html), closed };
  }

  #pieced(key: number, token: Pieced, open: readonly Piece[], standing: Standing): Kept {
    const stood = (key === this.#closed ? this.#fast : null) ?? {
      token,
      pieces: [],
      isLoose: isLoose(token),
    };
    const known = this.#kept[key];
    const before = known?.kind === stood.token.type ? known : null;
    const was = (before?.pieces ?? []) as readonly MadePiece[];
    const made = open.map((one, i) => {
      const isGrowing = standing.growing && i === open.length - 1 && token.type !== "code";
      const piece = isGrowing ? this.#healed(stood.token, one, stood.isLoose) : one;
      return this.#piece(piece, stood.isLoose, was[stood.pieces.length + i]);
    });
    const pieces = [...stood.pieces, ...made];
    const base = { key, closed: standing.closed };
    switch (stood.token.type) {
      case "list":
        return { ...base, ...listOf(stood.token as Tokens.List, pieces as Made<Item>[]) };
      case "table":
        return { ...base, ...tableOf(stood.token as Tokens.Table, pieces as Made<Row>[], before) };
      default:
        return { ...base, ...codeOf(stood.token as Tokens.Code, pieces as Made<Line>[]) };
    }
  }

  #piece({ raw: source, token }: Piece, loose: boolean, was: MadePiece | undefined): MadePiece {
    const raw = source.replace(/\n$/, ""); // which comes when another piece follows
    if (was?.raw === raw && was.isLoose === loose) return was;
    this.work.rendered += raw.length;
    const made = { raw, isLoose: loose };
    if (typeof token === "string") return { ...made, text: token };
    if (!("type" in token)) return { ...made, cells: cellsOf(token) };
    return { ...made, dir: direction([{ raw }]), html: sanitised(marked.parser(token.tokens)) };
  }

  /** The last piece with what is half open in it closed, where it stays one piece by that. */
  #healed(first: Pieced, piece: Piece, loose: boolean): Piece {
    const raw = remend(piece.raw, REMEND);
    if (raw === piece.raw) return piece;
    const { source, stand } = standIn(first, loose);
    const [only, ...others] = grouped(this.#lexed(source + raw), source, stand);
    const [healed, ...more] = only?.token.type === first.type ? only.pieces : [];
    if (!healed || others.length + more.length > 0) return piece;
    return { raw, token: healed.token };
  }
}

function listOf({ ordered, start }: Tokens.List, pieces: readonly Made<Item>[]) {
  const from = ordered && start !== 1 ? Number(start) : undefined;
  return { kind: "list", raw: "", dir: direction(pieces), ordered, start: from, pieces } as const;
}

function tableOf(token: Tokens.Table, pieces: readonly Made<Row>[], before: Kept | null) {
  const raw = standIn(token, false).source;
  const isSame = before?.kind === "table" && before.raw === raw;
  const head = isSame ? before.head : { cells: cellsOf(token.header) };
  const sides = token.align.map((side) => side ?? "start");
  return { kind: "table", raw, dir: direction([{ raw }, ...pieces]), sides, head, pieces } as const;
}

function codeOf({ lang }: Tokens.Code, pieces: readonly Made<Line>[]) {
  return { kind: "code", raw: "", language: languageOf(lang), pieces } as const;
}
