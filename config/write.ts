/** Options as a configuration file. */
import { isDeepStrictEqual } from 'node:util';
import { stringify } from 'yaml';
import type { ConfigNotice } from './errors.ts';
import { API_VERSION, KIND } from './file.ts';
import { OPTION_NAMES, RUN_SETTINGS, type RunOptions } from './settings.ts';

/** Options as an object of the API, with all fields; as JSON or YAML, `readConfigFile` reads it. */
export function toConfiguration(options: RunOptions): Record<string, unknown> {
  const root: Record<string, unknown> = { apiVersion: API_VERSION, kind: KIND };
  for (const name of OPTION_NAMES) {
    const { field, type: kind } = RUN_SETTINGS[name];
    if (field === undefined) continue;
    const path = field.split('.');
    const last = path.pop() ?? '';
    let section = root;
    for (const step of path) {
      section[step] ??= {};
      section = section[step] as Record<string, unknown>;
    }
    section[last] = kind.toFile(options[name]);
  }
  return root;
}

/**
 * The file that gives the same options when it is read back, as kube-proxy's `--write-config-to`
 * has it: YAML, fields in alphabetical order.
 */
export function configurationText(options: RunOptions): string {
  // By YAML 1.1, which kube-proxy reads, more words need quotes than by 1.2, which is read here.
  return stringify(toConfiguration(options), {
    version: '1.1',
    sortMapEntries: true,
    lineWidth: 0,
  });
}

/** Values that flags can have and files cannot: there they stand for the default. */
export function unwritableOptions(options: RunOptions): ConfigNotice[] {
  return OPTION_NAMES.flatMap((name) => {
    const { field, type: kind, keepsZero, default: usual } = RUN_SETTINGS[name];
    const written = kind.toFile(options[name]);
    if (field === undefined || keepsZero || !kind.isZero(written)) return [];
    if (isDeepStrictEqual(options[name], usual)) return [];
    const message = `a file cannot say ${JSON.stringify(written)}; it is read as ${kind.toFile(usual)}`;
    return [{ subject: field, message }];
  });
}
