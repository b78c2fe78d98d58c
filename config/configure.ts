/** From flags and file to the options of `portwide run`. */
import { COMMAND_SETTINGS } from './command-settings.ts';
import { type ConfigNotice, ConfigurationError } from './errors.ts';
import { type ParsedConfigFile, readConfigFile } from './file.ts';
import { type FlagTexts, parseFlags, problemOf, withDeprecatedPorts } from './flags.ts';
import { type ConfigFile, exclusiveFlags, gateWarnings, subjectOf } from './notices.ts';
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
  /** To be told to the user. */
  readonly warnings: readonly ConfigNotice[];
}

/**
 * Options from flags and file, with kube-proxy's precedence: beside `--config` nearly all flags are
 * ignored; the node's name and the logging flags count, and those that no file can have.
 * @throws ConfigurationError with all that is wrong.
 */
export function configure(given: FlagTexts, file?: ConfigFile): Configuration {
  const usesPorts = file === undefined && given.writeConfigTo === undefined;
  const { texts, problems } = usesPorts
    ? withDeprecatedPorts(given)
    : { texts: given, problems: [] };
  const reading: ParsedConfigFile =
    file === undefined
      ? { options: DEFAULTS, problems: [], warnings: [], invalid: new Set() }
      : readConfigFile(file.content, file.path);

  const flags = parseFlags<OptionName, RunOptions>(RUN_SETTINGS, texts, (name) => {
    if (file === undefined) return true;
    // An empty name is none, as in kube-proxy.
    return RUN_SETTINGS[name].overridesFile === true && texts[name] !== '';
  });
  const options: RunOptions = { ...reading.options, ...flags.values };

  const nameOf = (name: OptionName) => {
    const { field } = RUN_SETTINGS[name];
    const isFromFile = file !== undefined && field !== undefined && !(name in flags.values);
    return isFromFile ? field : flagOf(name);
  };
  const broken = new Set([...reading.invalid, ...flags.broken]);
  const contradicting = optionConflicts(options, nameOf)
    .filter(({ names }) => !names.some((name) => broken.has(name)))
    .map(({ names: [first], message }) => ({ subject: subjectOf(nameOf(first), file), message }));
  const all = [...problems, ...flags.problems, ...reading.problems];
  all.push(...contradicting, ...exclusiveFlags(given, file));
  const doubts = [...reading.warnings, ...gateWarnings(options, file)];
  if (all.length > 0) throw new ConfigurationError(all, { warnings: doubts });
  return { options, warnings: [...flagWarnings(given, file), ...doubts] };
}

/** Whether a flag of on or off is on. @throws ConfigurationError */
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
    warnings.push({ subject: flagOf(name), message: `is deprecated; use ${instead}` });
  }
  if (file === undefined) return warnings;
  const ignored = Object.entries(ALL_SETTINGS)
    .filter(([name, { overridesFile: winsOverFile }]) => texts[name] !== undefined && !winsOverFile)
    .map(([name]) => flagOf(name));
  if (ignored.length > 0) {
    warnings.push({ subject: ignored.join(', '), message: 'ignored, because --config is given' });
  }
  return warnings;
}
