/** Variables as text: for shells, as JSON, or as a container has them. */
import type { EnvVar } from './variables.ts';

export const ENV_FORMATS = ['shell', 'json', 'k8s'] as const;
export type EnvFormat = (typeof ENV_FORMATS)[number];

/**
 * Variables as text.
 *
 * `shell`: a line `export NAME='value';` for each, for `eval` in any POSIX shell. Those that no shell can
 * have (`isShellName`) are left out, for the shell would end at them.
 * `json`: an object from names to values.
 * `k8s`: the field `env` of a container, as YAML. Values are in quotes: those that look like numbers
 * have to be strings.
 * @param variables as `containerVariables` makes them; their names need no quotes.
 */
export function formatVariables(variables: readonly EnvVar[], format: EnvFormat): string {
  return FORMATS[format](variables);
}

/** Whether a shell can have a variable of this name. It may not begin with a digit. */
export function isShellName(name: string): boolean {
  return /^[A-Za-z_][A-Za-z0-9_]*$/.test(name);
}

const FORMATS: Readonly<Record<EnvFormat, (variables: readonly EnvVar[]) => string>> = {
  shell: (variables) =>
    variables
      .filter(({ name }) => isShellName(name))
      .map(({ name, value }) => `export ${name}=${shellQuoted(value)};\n`)
      .join(''),
  json: (variables) => {
    const object = Object.fromEntries(variables.map(({ name, value }) => [name, value]));
    return `${JSON.stringify(object, undefined, 2)}\n`;
  },
  k8s: (variables) => {
    if (variables.length === 0) return 'env: []\n';
    // A string of JSON is one of YAML too.
    const items = variables.map(
      ({ name, value }) => `  - name: ${name}\n    value: ${JSON.stringify(value)}\n`,
    );
    return `env:\n${items.join('')}`;
  },
};

/** Nothing has a meaning between single quotes, but for the one that ends them. */
function shellQuoted(value: string): string {
  return `'${value.replaceAll("'", "'\\''")}'`;
}
