/** Shared by all benchmarks: flags, repetition, and output. */
import { availableParallelism, cpus, loadavg, release } from 'node:os';
import { fileURLToPath } from 'node:url';
import { Command, InvalidArgumentError, Option } from 'commander';
import { VARIANTS, type Variant } from '../iptables/commands.ts';

/** A flag with a value. */
export interface Flag<Value> {
  readonly help: string;
  /** @throws InvalidArgumentError */
  readonly read: (text: string) => Value;
  /** Default value. */
  readonly normal: string;
  /**
   * Values that replace `normal` when another flag, for example `--quick`, is given, by the name of
   * that flag.
   */
  readonly presets: Presets;
}

type Presets = Readonly<Record<string, string>>;

export interface Bench<Values extends object> {
  /** Name of the script without `.ts`. */
  readonly name: string;
  readonly flags: { readonly [Name in keyof Values]: Flag<Values[Name]> };
  /** Requirements, and where the benchmark runs. */
  readonly where: string;
  readonly run: (values: Values) => Promise<void>;
}

/** Runs a benchmark with the flags of this process. */
export async function runBench<Values extends object>(bench: Bench<Values>): Promise<void> {
  const began = performance.now();
  const values = readFlags(bench);
  // iptables-legacy has one lock for all network namespaces. Use another lock file, any file, so
  // that other programs do not wait for the benchmark.
  process.env.XTABLES_LOCKFILE = fileURLToPath(import.meta.url);
  await bench.run(values);
  console.error(`took ${((performance.now() - began) / 60_000).toFixed(1)} minutes`);
}

/** Parses the flags of this process. Prints the usage and exits if they are invalid. */
export function readFlags<Values extends object>(bench: Omit<Bench<Values>, 'run'>): Values {
  const command = new Command(`node bench/${bench.name}.ts`)
    .addHelpText('after', `\n${bench.where}`)
    .showHelpAfterError();
  const flags = Object.entries<Flag<unknown>>(bench.flags);
  for (const [name, { help, read, normal }] of flags) {
    const option = new Option(`--${name} <${name}>`, help).default(read(normal), normal);
    command.addOption(option.argParser(read));
  }
  for (const preset of new Set(flags.flatMap(([, { presets }]) => Object.keys(presets)))) {
    const set = flags.flatMap(
      ([
        name,
        {
          read,
          presets: { [preset]: text },
        },
      ]) => (text === undefined ? [] : [{ name, text, value: read(text) }]),
    );
    const help = set.map(({ name, text }) => `--${name} ${text}`).join(' ');
    const values = Object.fromEntries(set.map(({ name, value }) => [name, value]));
    command.addOption(new Option(`--${preset}`, help).implies(values));
  }
  return command.parse().opts<Values>();
}

export const IN_NAMESPACES = 'Needs root. Uses its own network namespaces.';

/** Prints the first lines of the results: the machine, and what the values mean. */
export function printHead(legend: string, versions: readonly string[] = []): void {
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  const load = `load ${loadavg()[1]?.toFixed(1)}`;
  const machine = [`Linux ${release()}`, processor, load, ...versions, `Node ${process.version}`];
  console.log(`${machine.join(', ')}\n\n${legend}\n`);
}

/**
 * Measures several times and reports each run on standard error.
 * @param summary text of a run; default: everything.
 */
export async function repeat<Run>(
  runs: number,
  what: string,
  measure: () => Promise<Run>,
  summary: (run: Run) => string = (run) => JSON.stringify(run),
): Promise<Run[]> {
  const results: Run[] = [];
  for (let run = 1; run <= runs; run++) {
    const result = await measure();
    results.push(result);
    console.error(`${what}: run ${run} of ${runs}: ${summary(result)}`);
  }
  return results;
}

export function servicesFlag(normal: string, presets: Presets, least = 1): Flag<readonly number[]> {
  const read = (text: string) => text.split(',').map(wholeNumber(least));
  return { help: 'number of Services, one or several numbers', read, normal, presets };
}

export function numberFlag(help: string, normal: string, presets: Presets = {}): Flag<number> {
  return { help, read: wholeNumber(1), normal, presets };
}

export function runsFlag(normal: string, presets?: Presets): Flag<number> {
  return numberFlag('number of runs', normal, presets);
}

export const variantsFlag: Flag<readonly Variant[]> = {
  help: 'iptables variants, one or both',
  read: (text) => text.split(',').map(oneOf(VARIANTS)),
  normal: VARIANTS.join(),
  presets: {},
};

export function oneOf<Choice extends string>(choices: readonly Choice[]): (text: string) => Choice {
  return (text) => {
    const found = choices.find((choice) => choice === text);
    if (found !== undefined) return found;
    throw new InvalidArgumentError(`Expected ${choices.join(' or ')}`);
  };
}

function wholeNumber(least: number): (text: string) => number {
  return (text) => {
    const number = Number(text);
    if (text !== '' && Number.isInteger(number) && number >= least) return number;
    throw new InvalidArgumentError(`Expected a whole number of at least ${least}`);
  };
}
