/** YAML of objects of the API. A module of its own, because the package takes as long to load as all else. */
import { stringify } from 'yaml';

const OPTIONS = { lineWidth: 0, aliasDuplicateObjects: false } as const;

/** @param escaped replaces characters by escapes of JSON, which are also escapes of quoted YAML. */
export function yamlText(value: object, escaped: (text: string) => string): string {
  const text = stringify(value, OPTIONS);
  if (escaped(text) === text) return text;
  const quoted = { defaultStringType: 'QUOTE_DOUBLE', defaultKeyType: 'PLAIN' } as const;
  return escaped(stringify(value, { ...OPTIONS, ...quoted }));
}
