// What a long list, table or code that no line has closed yet is made of, so that none of them is read and
// drawn whole while it grows. Pure.
//
// Its first pieces stand fast once so many follow them. What is open is read behind a stand-in for them:
// of a table its head, of code its fence, of a list that is loose an item that makes it so, and of a tight
// one nothing.

import type { Token, Tokens } from "marked";

/** So many pieces at the end are read again: the last line may still join the one before it. */
const OPEN_PIECES = 3;

const LONG = 4_000;
const PARTS = 100;

/**
 * Whether so many characters may wait until there are more, behind so many that are read again with them:
 * so a word costs no more in the end of one endless paragraph, quotation or item than in its beginning.
 */
export const isLittle = (added: number, open: number): boolean =>
  open > LONG && added < open / PARTS;

export type Pieced = Tokens.List | Tokens.Table | Tokens.Code;

export const isPieced = (token: Token | undefined): token is Pieced =>
  token?.type === "list" || token?.type === "table" || (!!token && isClosed(token) === false);

/** Whether a line closes the fence of this; of what has none, nothing. */
function isClosed({ type, raw }: Token): boolean | undefined {
  const fence = type === "code" ? /^ {0,3}(`{3,}|~{3,})/.exec(raw)?.[1] : undefined;
  if (fence === undefined) return undefined;
  const lines = raw.trimEnd();
  const last = /^ {0,3}([`~]*)$/.exec(lines.slice(lines.lastIndexOf("\n") + 1))?.[1];
  return lines.includes("\n") && !!last?.startsWith(fence);
}

/** Whether nothing that follows can make it, or what stands before it, anything else. */
export const isShut = (token: Token): boolean => !!isClosed(token) && token.raw.endsWith("\n");

export interface Piece {
  readonly raw: string;
  /** Of code, a line. */
  readonly token: Tokens.ListItem | readonly Tokens.TableCell[] | string;
}

/** The pieces of a token whose source begins with `stand` stand-ins for pieces. */
export function piecesOf(token: Pieced, stand: number): readonly Piece[] {
  if (token.type === "list")
    return (token as Tokens.List).items
      .slice(stand)
      .map((item) => ({ raw: item.raw, token: item }));
  if (token.type === "code") {
    const texts = (token as Tokens.Code).text.split("\n");
    const lines = token.raw.split("\n").slice(1);
    if (lines.at(-1) === "") lines.pop(); // it has not begun
    return lines.map((line, i) => ({ raw: `${line}\n`, token: texts[i] ?? "" }));
  }
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
  if (token.type === "code") return { source: `${token.raw.split("\n", 1)[0]}\n`, stand: 0 };
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
    const inside = typeof token !== "string" && "tokens" in token ? token.tokens : [];
    return isBeforeBlank || inside.some((one) => one.type === "space" && /\n.*\n/.test(one.raw));
  });
}

export const isLoose = (token: Pieced): boolean =>
  token.type === "list" && (token as Tokens.List).loose;

/** What stands fast of it. */
interface Stood {
  readonly token: Pieced;
  readonly isLoose: boolean;
  readonly loosens: boolean;
}

/** Whether what follows the pieces that stand fast leaves them as they are. */
export function goesOn(stood: Stood, next: Grouped | undefined): boolean {
  if (next?.token.type !== stood.token.type || next.pieces.length === 0) return false;
  if (stood.token.type !== "list") return true;
  return stood.isLoose === (stood.loosens || loosens(next.pieces, false));
}

export interface Grouped {
  readonly raw: string;
  readonly token: Token;
  /** So many characters of it are blank lines before it. */
  readonly lead: number;
  /** Of a list, a table or open code. */
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
