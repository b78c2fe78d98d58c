/** Formats environment variables for a shell, as JSON, or as a container's `env` field. */
import type { EnvVar } from './variables.ts';

export const ENV_FORMATS = ['shell', 'json', 'k8s'] as const;
export type EnvFormat = (typeof ENV_FORMATS)[number];

/**
 * Formats variables as text.
 *
 * `shell`: a line `export NAME='value';` per variable, for `eval` in any POSIX shell. Names that are invalid in
 * a shell (`isShellName`) are omitted, because a shell exits at them.
 * `json`: an object from names to values.
 * `k8s`: the `env` field of a container, as YAML. Values are quoted, because numbers must be strings.
 * @param variables from `containerVariables`; their names need no quotes.
 */
export function formatVariables(variables: readonly EnvVar[], format: EnvFormat): string {
  return FORMATS[format](variables);
}

/** Whether the name is valid for a shell variable. A Service name that starts with a digit gives an invalid name. */
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
    // A JSON string is a valid YAML string.
    const items = variables.map(
      ({ name, value }) => `  - name: ${name}\n    value: ${JSON.stringify(value)}\n`,
    );
    return `env:\n${items.join('')}`;
  },
};

/** Quotes a value for a POSIX shell: in single quotes, only the single quote itself is special. */
function shellQuoted(value: string): string {
  return `'${value.replaceAll("'", "'\\''")}'`;
}
