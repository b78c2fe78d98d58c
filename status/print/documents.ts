/** Output as JSON and YAML. */

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
  return text.replaceAll(
    /[^\x20-\x7e\n]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
