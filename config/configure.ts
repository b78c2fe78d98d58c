/** Options of `portwide run` from its flags and the configuration file. */
import { COMMAND_SETTINGS } from './command-settings.ts';
import { type ConfigNotice, ConfigurationError } from './errors.ts';
import { type ParsedConfigFile, readConfigFile } from './file.ts';
import { type FlagTexts, parseFlags, problemOf, withDeprecatedPorts } from './flags.ts';
import { type ConfigFile, exclusiveFlags, subjectOf } from './notices.ts';
import { optionConflicts } from './option-conflicts.ts';
import { flagOf } from './setting.ts';
import {
  ALL_SETTINGS,
  DEFAULTS,
  type OptionName,
  RUN_SETTINGS,
  type RunOptions,
} from './settings.ts';

export interface Configuration {
  readonly options: RunOptions;
  readonly warnings: readonly ConfigNotice[];
}

/**
 * Merges flags and file with kube-proxy's precedence. With `--config`, flags are ignored unless they have
 * `overridesFile`: the node name, logging, network policy, and most flags without a field.
 * @throws ConfigurationError with all problems.
 */
export function configure(given: FlagTexts, file?: ConfigFile): Configuration {
  const usesPorts = file === undefined && given.writeConfigTo === undefined;
  const { texts, problems } = usesPorts
    ? withDeprecatedPorts(given)
    : { texts: given, problems: [] };
  const parsed: ParsedConfigFile =
    file === undefined
      ? { options: DEFAULTS, problems: [], warnings: [], invalid: new Set() }
      : readConfigFile(file.content, file.path);

  const flags = parseFlags<OptionName, RunOptions>(RUN_SETTINGS, texts, (name) => {
    if (file === undefined) return true;
    // As in kube-proxy, an empty flag does not override the file.
    return RUN_SETTINGS[name].overridesFile === true && texts[name] !== '';
  });
  const options: RunOptions = { ...parsed.options, ...flags.values };

  const nameOf = (name: OptionName) => {
    const { field } = RUN_SETTINGS[name];
    const isFromFile = file !== undefined && field !== undefined && !(name in flags.values);
    return isFromFile ? field : flagOf(name);
  };
  const invalid = new Set([...parsed.invalid, ...flags.invalid]);
  // Do not report conflicts with an invalid option: its value here is only the default.
  const conflicts = optionConflicts(options, nameOf)
    .filter(({ names }) => !names.some((name) => invalid.has(name)))
    .map(({ names: [first], message }) => ({ subject: subjectOf(nameOf(first), file), message }));
  const all = [...problems, ...flags.problems, ...parsed.problems];
  all.push(...conflicts, ...exclusiveFlags(given, file));
  const { warnings } = parsed;
  if (all.length > 0) throw new ConfigurationError(all, { warnings });
  return { options, warnings: [...flagWarnings(given, file), ...warnings] };
}

/** Whether a boolean action flag is set. @throws ConfigurationError */
export function isOn(texts: FlagTexts, name: 'cleanup' | 'initOnly'): boolean {
  let value = false;
  const problem = problemOf(flagOf(name), () => {
    value = COMMAND_SETTINGS[name].type.fromFlag(texts[name] ?? 'false');
  });
  if (problem !== undefined) throw new ConfigurationError([problem]);
  return value;
}

function flagWarnings(texts: FlagTexts, file: ConfigFile | undefined): ConfigNotice[] {
  const warnings: ConfigNotice[] = [];
  for (const name of ['healthzPort', 'metricsPort'] as const) {
    if (texts[name] === undefined) continue;
    const instead = flagOf(name).replace('port', 'bind-address');
    warnings.push({ subject: flagOf(name), message: `deprecated flag; use ${instead}` });
  }
  if (file === undefined) return warnings;
  const ignored = Object.entries(ALL_SETTINGS)
    .filter(([name, { overridesFile }]) => texts[name] !== undefined && !overridesFile)
    .map(([name]) => flagOf(name));
  if (ignored.length > 0) {
    warnings.push({
      subject: ignored.join(', '),
      message: 'flags ignored because --config is set',
    });
  }
  return warnings;
}
