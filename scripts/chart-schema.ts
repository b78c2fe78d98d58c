/**
 * `node scripts/chart-schema.ts` writes the fields of the configuration file into values.schema.json of
 * the chart.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { InvalidValueError } from '../config/errors.ts';
import { API_VERSION, KIND } from '../config/file.ts';
import { OPTION_NAMES, RUN_SETTINGS } from '../config/settings.ts';
import type { ValueType } from '../config/value-types.ts';

const PATH = new URL('../deploy/chart/portwide/values.schema.json', import.meta.url);

/** An object that has only these properties. */
interface Section {
  readonly type: readonly string[];
  readonly additionalProperties: false;
  readonly properties: Record<string, Section | { type: readonly string[] } | { const: string }>;
}

/** The schema of the chart's value `config`: a configuration file without the path of the kubeconfig. */
export function configSchema(): Section {
  const root = section();
  root.properties.apiVersion = { const: API_VERSION };
  root.properties.kind = { const: KIND };
  for (const name of OPTION_NAMES) {
    const { field, type, default: initial } = RUN_SETTINGS[name];
    // The chart mounts the kubeconfig and sets its path.
    if (field === undefined || name === 'kubeconfig') continue;
    const path = field.split('.');
    const last = path.pop() ?? '';
    let parent = root;
    for (const segment of path) {
      const child = parent.properties[segment] ?? section();
      parent.properties[segment] = child;
      if (!('properties' in child)) throw new Error(`${segment} is both a field and a section`);
      parent = child;
    }
    parent.properties[last] = { type: [...jsonTypes(type, type.toFile(initial)), 'null'] };
  }
  return root;
}

function section(): Section {
  return { type: ['object', 'null'], additionalProperties: false, properties: {} };
}

/** The JSON types that a setting accepts: the type of its default, and types of accepted samples. */
function jsonTypes(type: ValueType<unknown>, initial: unknown): string[] {
  // Any text may be invalid, for example as a duration.
  const text = typeof initial === 'string' ? initial : '';
  const samples = { string: text, integer: 1, number: 1.5, boolean: true, array: [], object: {} };
  const accepted = Object.entries(samples).filter(
    ([, sample]) => type.isZero(sample) || isAccepted(type, sample),
  );
  const names = accepted.map(([name]) => name);
  // Integers are numbers in JSON Schema, too.
  return names.filter((name) => name !== 'integer' || !names.includes('number'));
}

function isAccepted(type: ValueType<unknown>, value: unknown): boolean {
  try {
    type.fromFile(value, () => {});
    return true;
  } catch (error) {
    if (error instanceof InvalidValueError) return false;
    throw error;
  }
}

if (import.meta.main) {
  const schema = JSON.parse(readFileSync(PATH, 'utf8'));
  schema.properties.config = configSchema();
  writeFileSync(PATH, `${JSON.stringify(schema, undefined, 2)}\n`);
}
