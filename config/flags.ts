/** Command-line flags of settings. */
import { type Command, Help, Option } from 'commander';
import { canonicalAddress, socketAddress } from '../api/addresses.ts';
import { COMMAND_SETTINGS } from './command-settings.ts';
import { type ConfigNotice, InvalidValueError } from './errors.ts';
import { flagOf, formatDefault, GROUPS, type Setting, type Settings } from './setting.ts';

/** Unparsed flag values by setting name; flags that were not given are absent. */
export type FlagTexts = Readonly<Record<string, string | undefined>>;

/** Adds the flags of settings to a command. Values remain text until `configure` parses them. */
export function addFlags(command: Command, settings: Settings): Command {
  const ofGroup = Object.groupBy(Object.entries(settings), ([, { group }]) => group);
  for (const [group, title] of Object.entries(GROUPS)) {
    for (const [name, each] of ofGroup[group as keyof typeof GROUPS] ?? []) {
      if (each.fileOnly) continue;
      command.addOption(flagOption(name, each).helpGroup(`${title}:`));
    }
  }
  return withPlainHelp(command);
}

/** Omits commander's `preset: "true"` from the help of boolean flags: `[true|false]` shows that the value is optional. */
export function withPlainHelp(command: Command): Command {
  return command.configureHelp({ optionDescription: description });
}

const HELP = new Help();

function description(option: Option): string {
  return option.presetArg === undefined ? HELP.optionDescription(option) : option.description;
}

function flagOption(name: string, of: Setting<unknown>): Option {
  const { argument } = of.type;
  const long = name.length === 1 ? `${flagOf(name)}, --${name}` : flagOf(name);
  const defaultText = formatDefault(of);
  const text = defaultText === '' ? of.help : `${of.help} (default: ${defaultText})`;
  const option = new Option(`${long} ${argument}`, text);
  option.argParser((given: string, previous: string | undefined) => {
    // Go's flags allow `-v=3`; commander passes the value as `=3`.
    const value = name.length === 1 ? given.replace(/^=/, '') : given;
    // Repeated Go flags of lists and maps accumulate.
    return isList(of) && previous !== undefined ? `${previous},${value}` : value;
  });
  return argument.startsWith('[') ? option.preset('true') : option;
}

function isList({ type, default: value }: Setting<unknown>): boolean {
  const encoded = type.toFile(value);
  return encoded === null || typeof encoded === 'object';
}

/**
 * Parses the flags of a table of settings.
 * @param isUsed whether a given flag is parsed; other flags are ignored.
 * @returns the values, problems, and the names of flags with a problem.
 */
export function parseFlags<Name extends string, Values extends Record<Name, unknown>>(
  settings: Readonly<Record<Name, Setting<unknown>>>,
  texts: FlagTexts,
  isUsed: (name: Name) => boolean = () => true,
) {
  const values = new Map<Name, unknown>();
  const invalid = new Set<Name>();
  const problems: ConfigNotice[] = [];
  for (const name of Object.keys(settings) as Name[]) {
    const given = texts[name];
    if (given === undefined || !isUsed(name)) continue;
    const problem = problemOf(flagOf(name), () =>
      values.set(name, settings[name].type.fromFlag(given)),
    );
    if (problem === undefined) continue;
    problems.push(problem);
    invalid.add(name);
  }
  return { values: Object.fromEntries(values) as Partial<Values>, problems, invalid };
}

/**
 * Applies the deprecated `--healthz-port` and `--metrics-port` as kube-proxy does. 0 disables the server.
 * Another port applies only to a bind address without a port; the default addresses have one.
 */
export function withDeprecatedPorts(texts: FlagTexts): {
  texts: FlagTexts;
  problems: ConfigNotice[];
} {
  const problems: ConfigNotice[] = [];
  const addresses: Record<string, string> = {};
  for (const [portName, addressName] of [
    ['healthzPort', 'healthzBindAddress'],
    ['metricsPort', 'metricsBindAddress'],
  ] as const) {
    const given = texts[portName];
    if (given === undefined) continue;
    const problem = problemOf(flagOf(portName), () => {
      const port = COMMAND_SETTINGS[portName].type.fromFlag(given);
      const address = canonicalAddress(texts[addressName] ?? '');
      if (port === 0) addresses[addressName] = '';
      else if (address !== undefined) addresses[addressName] = socketAddress(address, port);
    });
    if (problem !== undefined) problems.push(problem);
  }
  return { texts: { ...texts, ...addresses }, problems };
}

/** Runs an action that may throw InvalidValueError. @returns the problem; undefined if none. */
export function problemOf(subject: string, action: () => void): ConfigNotice | undefined {
  try {
    action();
    return undefined;
  } catch (error) {
    if (!(error instanceof InvalidValueError)) throw error;
    return { subject, message: error.problems.map(({ reason }) => reason).join('; ') };
  }
}
