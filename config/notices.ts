/** What is to be told of flags and file, for all commands. */
import type { ConfigNotice } from './errors.ts';
import type { FlagTexts } from './flags.ts';
import { unknownGates } from './map-types.ts';
import { flagOf } from './setting.ts';
import type { RunOptions } from './settings.ts';
import { joinPath, pathSegment } from './value-types.ts';

/** The configuration file, as it was read. */
export interface ConfigFile {
  readonly path: string;
  readonly content: string;
}

/** Feature gates that nobody here knows. */
export function gateWarnings(
  { featureGates }: Pick<RunOptions, 'featureGates'>,
  file?: ConfigFile,
): ConfigNotice[] {
  return unknownGates(featureGates).map((gate) => {
    const field = joinPath('featureGates', pathSegment(gate));
    const subject = file === undefined ? flagOf('featureGates') : subjectOf(field, file);
    return { subject, message: `unknown feature gate ${gate}; it switches nothing` };
  });
}

/** A setting as a notice names it: with the file that has it. */
export function subjectOf(name: string, file: ConfigFile | undefined): string {
  return file === undefined || name.startsWith('-') ? name : `${file.path}: ${name}`;
}

/** Flags that each say where objects come from. */
export function exclusiveFlags(texts: FlagTexts, file?: ConfigFile): ConfigNotice[] {
  if (!texts.manifests) return [];
  const others = file === undefined ? ['kubeconfig', 'master'] : ['master'];
  return others
    .filter((name) => texts[name])
    .map((name) => ({ subject: `--manifests and ${flagOf(name)}`, message: 'exclude each other' }));
}
