/**
 * Times the iptables mode on this machine's kernel: full syncs, single changes and the first packet
 * of connections, and beside each the same with the shape of kube-proxy's rules. Results go to
 * standard output as Markdown, progress to standard error.
 */
import { availableParallelism, cpus, release } from 'node:os';
import { fileURLToPath } from 'node:url';
import { iptablesCommands, type Variant } from '../iptables/commands.ts';
import { type Flags, readFlags, USAGE } from './flags.ts';
import type { Shape } from './jobs.ts';
import { LIMIT, measure } from './measure.ts';
import { HEAD, rows } from './table.ts';

/** From here on full syncs are slow, and fewer of them must do. */
const LARGE = 5000;
/** Full syncs of what Portwide is compared with, at most. */
const COMPARISON_RUNS = 3;

async function main(flags: Flags): Promise<void> {
  const began = performance.now();
  console.log(`${await machine(flags.variants)}\n`);
  console.log(`${LEGEND}\n`);
  console.log(HEAD.join('\n'));
  for (const variant of flags.variants) {
    for (const services of flags.services) {
      const runs = flags.runs ?? (services < LARGE ? 5 : 3);
      const measureShape = (shape: Shape, times: number) =>
        measure({ shape, variant, services, runs: times }, (text) =>
          console.error(`iptables-${variant}, ${services} Services, ${shape}: ${text}`),
        );
      const portwide = await measureShape('portwide', runs);
      const kubeProxy = await measureShape('kube-proxy', Math.min(runs, COMPARISON_RUNS));
      console.log(rows(variant, services, portwide, kubeProxy).join('\n'));
    }
  }
  console.error(`took ${((performance.now() - began) / 60_000).toFixed(1)} minutes`);
}

const LEGEND = `Each Service has 10 endpoints; IPv4, one TCP port, and one Service more that is on every port.
Medians, with the least and the greatest. Portwide's time runs from the first object to the kernel; at a
restart the kernel has everything already. Kube-proxy's shape is not kube-proxy itself: its rules, loaded by
the same iptables-restore, which alone is timed. Its change sends the chains of the Service and all of
KUBE-SERVICES; the first and the last VIP are those of that chain. What it could not load within ${LIMIT} s was
loaded in several transactions for what follows.`;

async function machine(variants: readonly Variant[]): Promise<string> {
  const versions = await Promise.all(
    variants.map((variant) => iptablesCommands('IPv4', variant).version()),
  );
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  return `Linux ${release()}, ${processor}, ${versions.join(', ')}, Node ${process.version}`;
}

let flags: Flags | undefined;
try {
  flags = readFlags(process.argv.slice(2));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (flags !== undefined) {
  // iptables-legacy has one lock for all namespaces: other programs must not wait for the benchmark. Any
  // file will do.
  process.env.XTABLES_LOCKFILE = fileURLToPath(import.meta.url);
  await main(flags);
}
