// What a palette offers, and what of it fits the words that were typed. Pure.

interface Piece {
  readonly text: string;
  readonly is_match: boolean;
}

export interface Command {
  readonly id: string;
  readonly name: string;
  /** What a reader sees below the name, with what was looked for marked in it. */
  readonly about?: readonly Piece[];
  readonly run: () => void;
}

const MARKS = /\p{M}/gu;
const plain = (text: string): string => text.normalize("NFD").replace(MARKS, "").toLowerCase();

/** Those that have all the words in their name; a name that begins with them comes first. */
export function fitting(
  commands: readonly Command[],
  words: string,
  most: number,
): readonly Command[] {
  const wanted = plain(words).split(/\s+/).filter(Boolean);
  const found = commands.filter(({ name }) => wanted.every((word) => plain(name).includes(word)));
  const begins = ({ name }: Command): number =>
    wanted[0] !== undefined && plain(name).startsWith(wanted[0]) ? 0 : 1;
  return found.sort((a, b) => begins(a) - begins(b)).slice(0, most);
}
