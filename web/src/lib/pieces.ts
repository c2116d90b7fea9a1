// What a long list or table is made of, so that neither is read and drawn whole while it grows. Pure.
//
// Its first pieces stand fast once so many follow them. What is open is read behind a stand-in for them:
// of a table its head, of a list that is loose an item that makes it so, and of a tight one nothing.

import type { Token, Tokens } from "marked";

/** So many pieces at the end are read again: the last line may still join the one before it. */
const OPEN_PIECES = 3;

export type Pieced = Tokens.List | Tokens.Table;

export const isPieced = (token: Token | undefined): token is Pieced =>
  token?.type === "list" || token?.type === "table";

export interface Piece {
  readonly raw: string;
  readonly token: Tokens.ListItem | readonly Tokens.TableCell[];
}

/** The pieces of a token whose source begins with `stand` stand-ins for pieces. */
export function piecesOf(token: Pieced, stand: number): readonly Piece[] {
  if (token.type === "list")
    return (token as Tokens.List).items
      .slice(stand)
      .map((item) => ({ raw: item.raw, token: item }));
  const { raw, rows } = token as Tokens.Table;
  const lines = raw.split("\n").slice(2);
  return rows.map((row, i) => ({ raw: `${lines[i] ?? ""}\n`, token: row }));
}

/** What stands for the first pieces of this, and how many pieces that makes. */
export function standIn(token: Pieced, isLoose: boolean): { source: string; stand: number } {
  if (token.type === "table") {
    const [head = "", rule = ""] = token.raw.split("\n");
    return { source: `${head}\n${rule}\n`, stand: 0 };
  }
  if (!isLoose) return { source: "", stand: 0 };
  const bullet = /^ *(?:[*+-]|\d+[.)])/.exec(token.raw)?.[0].trimStart() ?? "-";
  // As far to the right as may be, so that what follows it stands beside it and never inside.
  return { source: `   ${bullet} .\n\n`, stand: 1 };
}

/** How many of its pieces stand fast. */
export const fast = (pieces: readonly Piece[]): number => Math.max(0, pieces.length - OPEN_PIECES);

/** Whether one of these items makes its list loose, as `marked` has it; `followed`: another comes. */
export function loosens(items: readonly Piece[], followed: boolean): boolean {
  return items.some(({ raw, token }, i) => {
    const isBeforeBlank = (followed || i < items.length - 1) && /\n[ \t]*\n[ \t]*$/.test(raw);
    const inside = "tokens" in token ? token.tokens : [];
    return isBeforeBlank || inside.some((one) => one.type === "space" && /\n.*\n/.test(one.raw));
  });
}

export const isLoose = (token: Pieced): boolean =>
  token.type === "list" && (token as Tokens.List).loose;

/** What stands fast of a list or table. */
interface Stood {
  readonly token: Pieced;
  readonly isLoose: boolean;
  readonly loosens: boolean;
}

/** Whether what follows the pieces that stand fast leaves them as they are. */
export function goesOn(stood: Stood, next: Grouped | undefined): boolean {
  if (next?.token.type !== stood.token.type || next.pieces.length === 0) return false;
  if (stood.token.type === "table") return true;
  return stood.isLoose === (stood.loosens || loosens(next.pieces, false));
}

export interface Grouped {
  readonly raw: string;
  readonly token: Token;
  /** So many characters of it are blank lines before it. */
  readonly lead: number;
  /** Of a list or table. */
  readonly pieces: readonly Piece[];
}

/**
 * Each block with the blank lines that follow it (and, at the start, precede it). The first begins with
 * `source`, which makes `stand` pieces and is no part of the text.
 */
export function grouped(tokens: readonly Token[], source: string, stand: number): Grouped[] {
  const found: Grouped[] = [];
  let before = "";
  for (const token of tokens) {
    const last = found.at(-1);
    if (token.type !== "space") {
      const raw = before + (last ? token.raw : token.raw.slice(source.length));
      const pieces = isPieced(token) ? piecesOf(token, last ? 0 : stand) : [];
      found.push({ raw, token, lead: before.length, pieces });
      before = "";
    } else if (last) {
      found[found.length - 1] = { ...last, raw: last.raw + token.raw };
    } else {
      before = token.raw;
    }
  }
  return found;
}
