/** Text as `kubectl describe` prints it: labels with values beside them or indented below. Pure. */
import { NONE } from './units.ts';

/** A label with the text beside it, or with lines below it. */
export type Section = readonly [label: string, content: string | readonly string[]];

/** Aligns the values of labels. An empty list of lines prints as `<none>`. */
export function sectionsText(sections: readonly Section[]): string {
  const values = sections.map(
    ([label, content]) => [label, content.length === 0 ? NONE : content] as const,
  );
  const beside = values.filter(([, value]) => typeof value === 'string');
  const width = Math.max(0, ...beside.map(([label]) => label.length)) + 3;
  return values
    .flatMap(([label, value]) => {
      if (typeof value === 'string') return [`${label}:`.padEnd(width) + value];
      return [`${label}:`, ...value.map((line) => `  ${line}`)];
    })
    .map((line) => `${line}\n`)
    .join('');
}

/** The lines of a text. */
export function linesOf(text: string): string[] {
  return text.split('\n').filter((line) => line !== '');
}
