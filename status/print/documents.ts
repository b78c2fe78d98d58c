/** Output as JSON and YAML. Pure, except that the YAML package loads late. */

/** Formats of an object of the API. */
export type DocumentFormat = 'json' | 'yaml';

/** Indented JSON of printable ASCII: other characters are escaped, because any user of the cluster may write them. */
function jsonText(value: object): string {
  return `${escaped(JSON.stringify(value, undefined, 2))}\n`;
}

/** @param value an object of the API. */
export async function documentText(value: object, format: DocumentFormat): Promise<string> {
  if (format === 'json') return jsonText(value);
  const { stringify } = await import('yaml');
  const text = stringify(value, { lineWidth: 0, aliasDuplicateObjects: false });
  if (escaped(text) === text) return text;
  // Only quoted strings can have escapes.
  const quoted = {
    lineWidth: 0,
    defaultStringType: 'QUOTE_DOUBLE',
    defaultKeyType: 'PLAIN',
  } as const;
  return escaped(stringify(value, { ...quoted, aliasDuplicateObjects: false }));
}

function escaped(text: string): string {
  return text.replaceAll(
    /[^\x20-\x7e\n]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
