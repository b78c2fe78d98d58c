/** Splits textlint nodes into sentences and keeps their positions. */
import type { AnyTxtNode, TxtNode, TxtParentNode } from '@textlint/ast-node-types';
import { split } from 'sentence-splitter';

export interface Sentence {
  readonly text: string;
  /** From the start of the node, in characters. */
  readonly start: number;
}

/** Replaces each character of code, so that code counts as one word and no rule matches it. */
const CODE = 'x';

/**
 * The sentences of a paragraph, heading or table cell. Markup becomes spaces, so positions are as in the source.
 */
export function sentencesOf(node: TxtNode): Sentence[] {
  const text = [...' '.repeat(node.range[1] - node.range[0])];
  const put = (value: string, at: number) => {
    // UTF-16 units, as in the ranges of nodes.
    for (let index = 0; index < value.length; index += 1) text[at + index] = value.charAt(index);
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

/** Counts words: parts between spaces that contain a letter or a digit. */
export function countWords({ text }: Sentence): number {
  return text.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
}
