/**
 * Times the IPVS mode in user-mode-linux, beside ipvsadm in the same kernel. Results go to standard
 * output as Markdown, progress to standard error.
 */
import { availableParallelism, cpus, release } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { bootUml, INSIDE } from '../test/uml/boot.ts';
import type { IpvsMeasured } from './ipvs-jobs.ts';
import { ipvsRows, LEGEND } from './ipvs-table.ts';

const REPORT = 'report';
const SCRIPT = fileURLToPath(new URL('ipvs-inside.ts', import.meta.url));
const TIMEOUT_SECONDS = 3600;

const USAGE = `Usage: node bench/ipvs.ts [--services 1000] [--runs N] [--quick]

  --services  how many Services
  --runs      how often everything is measured (default 5)
  --quick     2 runs, unless --runs says otherwise

Needs root. Works in a kernel of its own, user-mode-linux.`;

async function main(services: number, runs: number): Promise<void> {
  const began = performance.now();
  const words = { services, runs, report: `${INSIDE}/${REPORT}` };
  const kernel = bootUml({
    command: [
      'node',
      SCRIPT,
      ...Object.entries(words).map(([name, value]) => `--${name}=${value}`),
    ],
    timeoutSeconds: TIMEOUT_SECONDS,
  });
  try {
    let heard = 0;
    for (let over = false; !over; ) {
      over = kernel.ended !== undefined;
      const lines = kernel.read('output').split('\n').slice(0, -1);
      for (const line of lines.slice(heard)) console.error(`ipvs, ${services} Services, ${line}`);
      heard = lines.length;
      if (!over) await sleep(500);
    }
    const text = kernel.read(REPORT);
    if (text === '') throw new Error(`no report: ${kernel.ended}\n${kernel.said()}`);
    const measured = JSON.parse(text) as IpvsMeasured;
    const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
    const inside = `user-mode-linux ${measured.kernel}, ${measured.ipvsadm}`;
    console.log(`${inside}, Node ${process.version}, on Linux ${release()}, ${processor}\n`);
    console.log(`${LEGEND}\n`);
    console.log(ipvsRows(services, measured).join('\n'));
  } finally {
    await kernel.stop();
  }
  console.error(`took ${((performance.now() - began) / 60_000).toFixed(1)} minutes`);
}

function readNumber(flag: string, text: string): number {
  const number = Number(text);
  if (Number.isInteger(number) && number > 0) return number;
  throw new TypeError(`--${flag}: expected a number from 1, got "${text}"`);
}

let numbers: [services: number, runs: number] | undefined;
try {
  const { values } = parseArgs({
    options: {
      services: { type: 'string', default: '1000' },
      runs: { type: 'string' },
      quick: { type: 'boolean', default: false },
    },
  });
  const runs = values.runs ?? (values.quick ? '2' : '5');
  numbers = [readNumber('services', values.services), readNumber('runs', runs)];
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (numbers !== undefined) await main(...numbers);
