/** Sentences of a page or a source file, at the places where they stand. */
import type { AnyTxtNode, TxtNode, TxtParentNode } from '@textlint/ast-node-types';
import { split } from 'sentence-splitter';

export interface Sentence {
  readonly text: string;
  /** From the start of the node, in characters. */
  readonly start: number;
}

/** Stands for code, which counts as one word and is not read. */
const CODE = 'x';

/** The sentences of a paragraph, a heading or a cell of a table. Each keeps its place: what is not prose is blank. */
export function sentencesOf(node: TxtNode): Sentence[] {
  const text = [...' '.repeat(node.range[1] - node.range[0])];
  const put = (value: string, at: number) => {
    for (const [index, character] of [...value].entries()) text[at + index] = character;
  };
  const visit = (child: AnyTxtNode | TxtNode): void => {
    const length = child.range[1] - child.range[0];
    const at = child.range[0] - node.range[0];
    if (child.type === 'Code') put(CODE.repeat(length), at);
    else if (child.type === 'Str' && 'value' in child) {
      put((child.value.length === length ? child.value : child.raw).replaceAll('\n', ' '), at);
    } else if ('children' in child)
      for (const part of (child as TxtParentNode).children) visit(part);
  };
  visit(node);
  // The splitter takes a full stop after a number for a decimal point.
  return split(text.join('').replaceAll(/(?<=\d)\.(?=\s+[A-Z])/g, '!'))
    .filter(({ type }) => type === 'Sentence')
    .map(({ raw, range }) => ({ text: raw, start: range[0] }));
}

/** How many words a sentence has; a word has a letter or a digit. */
export function countWords({ text }: Sentence): number {
  return text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
}
