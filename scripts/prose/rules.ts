/** textlint rules for prose, and for names in the code. CONTRIBUTING.md, "Words", has the reasons. */
import type { TxtNode } from '@textlint/ast-node-types';
import type { TextlintRuleContext, TextlintRuleModule } from '@textlint/types';
import { countWords, type Sentence, sentencesOf } from './sentences.ts';
import { AVOIDED, INVENTED_NAMES } from './words.ts';

const MAX_WORDS = 30;
const MAX_PASSIVES = 2;

interface Finding {
  readonly message: string;
  /** From the start of the sentence, in characters. */
  readonly start: number;
}

function avoidedWords({ text }: Sentence): Finding[] {
  return AVOIDED.flatMap(({ pattern, advice }) =>
    [...text.matchAll(pattern)].map(({ 0: word, index }) => ({
      message: `"${word}": ${advice}`,
      start: index,
    })),
  );
}

function longSentence(sentence: Sentence): Finding[] {
  const words = countWords(sentence);
  return words <= MAX_WORDS
    ? []
    : [{ message: `${words} words in a sentence, at most ${MAX_WORDS}`, start: 0 }];
}

/** Irregular participles that the texts of this repository use. */
const IRREGULAR =
  'bound|built|cut|done|drawn|found|given|held|kept|known|laid|left|lost|made|meant|met|put|read|run|said|seen|sent|set|shown|split|taken|thrown|told|understood|written';
const PASSIVE = new RegExp(
  `\\b(?:is|are|was|were|be|been|being)(?: not| never| only| also| still| \\w+ly)? (?:\\w+ed|${IRREGULAR})\\b`,
  'gi',
);

function passiveChain({ text }: Sentence): Finding[] {
  const passives = [...text.matchAll(PASSIVE)];
  const [first] = passives;
  if (first === undefined || passives.length <= MAX_PASSIVES) return [];
  const verbs = passives.map(([verb]) => `"${verb}"`).join(', ');
  return [{ message: `${passives.length} passives in a sentence: ${verbs}`, start: first.index }];
}

const MAX_CLAUSES = 2;
const CLAUSE = /\b(?:that|which|who|whose|what)\b/gi;

function clauseChain({ text }: Sentence): Finding[] {
  const clauses = [...text.matchAll(CLAUSE)];
  const [first] = clauses;
  if (first === undefined || clauses.length <= MAX_CLAUSES) return [];
  const words = clauses.map(([word]) => `"${word}"`).join(', ');
  return [{ message: `${clauses.length} clauses in a sentence: ${words}`, start: first.index }];
}

/** Creates a rule that checks each sentence separately. */
function eachSentence(find: (sentence: Sentence) => Finding[]): TextlintRuleModule {
  return (context: Readonly<TextlintRuleContext>) => {
    const check = (node: TxtNode) => {
      for (const sentence of sentencesOf(node)) {
        for (const { message, start } of find(sentence)) {
          const padding = context.locator.at(sentence.start + start);
          context.report(node, new context.RuleError(message, { padding }));
        }
      }
    };
    return { Paragraph: check, Header: check, TableCell: check };
  };
}

/** Matches the raw source of TypeScript files, because names are not part of the prose. */
const inventedNames: TextlintRuleModule = (context: Readonly<TextlintRuleContext>) => ({
  Document(node: TxtNode) {
    if (!context.getFilePath()?.endsWith('.ts')) return;
    for (const { 0: name, index } of context.getSource(node).matchAll(INVENTED_NAMES)) {
      const padding = context.locator.range([index, index + name.length]);
      context.report(node, new context.RuleError(`"${name}": use the field's term`, { padding }));
    }
  },
});

export const RULES: Readonly<Record<string, TextlintRuleModule>> = {
  'avoided-words': eachSentence(avoidedWords),
  'long-sentence': eachSentence(longSentence),
  'passive-chain': eachSentence(passiveChain),
  'clause-chain': eachSentence(clauseChain),
  'invented-names': inventedNames,
};
