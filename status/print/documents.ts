/** Output as JSON and YAML. */
import { printableAscii } from '../../api/read-field.ts';

/** Formats of an object of the API. */
export type DocumentFormat = 'json' | 'yaml';

/**
 * Formats an object of the API as printable ASCII. Other characters are escaped, because any user of the cluster may
 * write them.
 */
export async function documentText(value: object, format: DocumentFormat): Promise<string> {
  if (format === 'json') return `${escaped(JSON.stringify(value, undefined, 2))}\n`;
  const { yamlText } = await import('./yaml.ts');
  return yamlText(value, escaped);
}

/** Formats an object as one line of JSON in printable ASCII, for a stream. */
export function jsonLine(value: object): string {
  return `${escaped(JSON.stringify(value))}\n`;
}

function escaped(text: string): string {
  return text.split('\n').map(printableAscii).join('\n');
}
