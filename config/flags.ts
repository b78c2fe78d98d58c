/** Flags on the command line. */
import { type Command, Help, Option } from 'commander';
import { canonicalAddress, socketAddress } from '../api/addresses.ts';
import { COMMAND_SETTINGS } from './command-settings.ts';
import { type ConfigNotice, InvalidValueError } from './errors.ts';
import { flagOf, formatDefault, GROUPS, type Setting, type Settings } from './setting.ts';

/** Flags as they were given, by the names of their settings; what was not given is not there. */
export type FlagTexts = Readonly<Record<string, string | undefined>>;

/**
 * Adds the flags of settings. They stay text until `configure`, which knows whether they count
 * and tells of all that is wrong.
 */
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

/** Leaves out what commander says of a flag that may stand alone (`preset: "true"`): its brackets say so. */
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
  const usual = formatDefault(of);
  const text = usual === '' ? of.help : `${of.help} (default: ${usual})`;
  const option = new Option(`${long} ${argument}`, text);
  option.argParser((given: string, previous: string | undefined) => {
    // `-v=3`, as Go's flags are written, which commander hands over with the sign.
    const value = name.length === 1 ? given.replace(/^=/, '') : given;
    // Go's flags for lists and maps add up.
    return isList(of) && previous !== undefined ? `${previous},${value}` : value;
  });
  return argument.startsWith('[') ? option.preset('true') : option;
}

function isList({ type: kind, default: usual }: Setting<unknown>): boolean {
  const written = kind.toFile(usual);
  return written === null || typeof written === 'object';
}

/** Reads those flags of a table of settings that `counts` says count. @returns values of the type `Values`. */
export function parseFlags<Name extends string, Values extends Record<Name, unknown>>(
  settings: Readonly<Record<Name, Setting<unknown>>>,
  texts: FlagTexts,
  counts: (name: Name) => boolean = () => true,
) {
  const values = new Map<Name, unknown>();
  const broken = new Set<Name>();
  const problems: ConfigNotice[] = [];
  for (const name of Object.keys(settings) as Name[]) {
    const given = texts[name];
    if (given === undefined || !counts(name)) continue;
    const problem = problemOf(flagOf(name), () =>
      values.set(name, settings[name].type.fromFlag(given)),
    );
    if (problem === undefined) continue;
    problems.push(problem);
    broken.add(name);
  }
  return { values: Object.fromEntries(values) as Partial<Values>, problems, broken };
}

/**
 * `--healthz-port` and `--metrics-port`, which are deprecated, as kube-proxy takes them: 0 is no
 * server; any other is the port of an address that was given without one, and changes nothing where
 * there is one, as in the default.
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

/** @returns what is wrong, if anything is. */
export function problemOf(subject: string, action: () => void): ConfigNotice | undefined {
  try {
    action();
    return undefined;
  } catch (error) {
    if (!(error instanceof InvalidValueError)) throw error;
    return { subject, message: error.problems.map(({ reason }) => reason).join('; ') };
  }
}
