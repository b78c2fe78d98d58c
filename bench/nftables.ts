/**
 * Times the nftables mode on this machine's kernel, beside what the kernel takes for the same alone.
 * Results go to standard output as Markdown, progress to standard error.
 */
import { availableParallelism, cpus, release } from 'node:os';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { measureNftables } from './nftables-measure.ts';
import { HEAD, LEGEND, nftablesRows } from './nftables-table.ts';

const USAGE = `Usage: node bench/nftables.ts [--services 100,10000] [--runs N] [--quick] [--all]

  --services  how many Services, one or several numbers
  --runs      how often everything is measured (default 3)
  --quick     100 and 1,000 Services and 2 runs, unless the others say otherwise
  --all       100, 1,000, 10,000 and 30,000 Services

Needs root. Works in network namespaces of its own.`;

interface Flags {
  readonly services: readonly number[];
  readonly runs: number;
}

function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: {
      services: { type: 'string' },
      runs: { type: 'string' },
      quick: { type: 'boolean', default: false },
      all: { type: 'boolean', default: false },
    },
  });
  const sizes = values.all ? '100,1000,10000,30000' : values.quick ? '100,1000' : '100,10000';
  return {
    services: (values.services ?? sizes).split(',').map((text) => wholeNumber('services', text)),
    runs: wholeNumber('runs', values.runs ?? (values.quick ? '2' : '3')),
  };
}

function wholeNumber(flag: string, text: string): number {
  const number = Number(text);
  if (Number.isInteger(number) && number > 0) return number;
  throw new TypeError(`--${flag}: expected a number from 1, got "${text}"`);
}

async function main({ services, runs }: Flags): Promise<void> {
  const began = performance.now();
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  const { stdout: nft } = await execa('nft', ['--version']);
  console.log(`Linux ${release()}, ${processor}, ${nft}, Node ${process.version}\n`);
  console.log(`${LEGEND}\n`);
  console.log(HEAD.join('\n'));
  for (const count of services) {
    const measured = await measureNftables(count, runs, (text) =>
      console.error(`nftables, ${count} Services, ${text}`),
    );
    console.log(nftablesRows(count, measured).join('\n'));
  }
  console.error(`took ${((performance.now() - began) / 60_000).toFixed(1)} minutes`);
}

let flags: Flags | undefined;
try {
  flags = readFlags(process.argv.slice(2));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (flags !== undefined) await main(flags);
