/** Errors about flags and the configuration file, shared by all commands. */
import type { ConfigNotice } from './errors.ts';
import type { FlagTexts } from './flags.ts';
import { flagOf } from './setting.ts';

/** The configuration file as read. */
export interface ConfigFile {
  readonly path: string;
  readonly content: string;
}

/** The name of a setting in a notice: a flag, or the file and the field. */
export function subjectOf(name: string, file: ConfigFile | undefined): string {
  return file === undefined || name.startsWith('-') ? name : `${file.path}: ${name}`;
}

/** Errors for `--kubeconfig` or `--master` with `--manifests`: only one source of objects can be used. */
export function exclusiveFlags(texts: FlagTexts, file?: ConfigFile): ConfigNotice[] {
  if (!texts.manifests) return [];
  const others = file === undefined ? ['kubeconfig', 'master'] : ['master'];
  return others
    .filter((name) => texts[name])
    .map((name) => ({
      subject: '--manifests',
      message: `cannot be combined with ${flagOf(name)}`,
    }));
}
