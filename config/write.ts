/** Writes options as a configuration file. */
import { isDeepStrictEqual } from 'node:util';
import { stringify } from 'yaml';
import type { ConfigNotice } from './errors.ts';
import { API_VERSION, KIND } from './file.ts';
import { OPTION_NAMES, RUN_SETTINGS, type RunOptions } from './settings.ts';

/** The KubeProxyConfiguration object of the options, with all fields, in the form that `readConfigFile` reads. */
export function toConfiguration(options: RunOptions): Record<string, unknown> {
  const root: Record<string, unknown> = { apiVersion: API_VERSION, kind: KIND };
  for (const name of OPTION_NAMES) {
    const { field, type } = RUN_SETTINGS[name];
    if (field === undefined) continue;
    const path = field.split('.');
    const last = path.pop() ?? '';
    let section = root;
    for (const segment of path) {
      section[segment] ??= {};
      section = section[segment] as Record<string, unknown>;
    }
    section[last] = type.toFile(options[name]);
  }
  return root;
}

/**
 * The file that gives the options when read, except `unwritableOptions`: YAML with fields in alphabetical order,
 * like kube-proxy's.
 */
export function configurationText(options: RunOptions): string {
  // kube-proxy reads YAML 1.1, in which more words need quotes than in 1.2.
  return stringify(toConfiguration(options), {
    version: '1.1',
    sortMapEntries: true,
    lineWidth: 0,
  });
}

/** Warnings for zero values that a file cannot express, because zero in a file means the default. */
export function unwritableOptions(options: RunOptions): ConfigNotice[] {
  return OPTION_NAMES.flatMap((name) => {
    const { field, type, keepsZero, default: defaultValue } = RUN_SETTINGS[name];
    const encoded = type.toFile(options[name]);
    if (field === undefined || keepsZero || !type.isZero(encoded)) return [];
    if (isDeepStrictEqual(options[name], defaultValue)) return [];
    const message = `in a file, ${JSON.stringify(encoded)} means the default, ${type.toFile(defaultValue)}`;
    return [{ subject: field, message }];
  });
}
