/**
 * Measures the agent of a checkout and that of the image: sizes, the start until the kernel has all rules, and memory
 * afterwards. Results go to standard output as Markdown, progress to standard error.
 */
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { VERSION } from '../process/version.ts';
import { ARCHITECTURES } from '../scripts/dist/npm-packages.ts';
import { ROOT } from '../test/deploy/manifests.ts';
import {
  CRUN,
  daemonSet,
  type ImageConfig,
  unpackImage,
  writeContainer,
} from '../test/dist/container.ts';
import {
  clusterObjects,
  logged,
  type NodeWithApiServer,
  PORTWIDE,
  portwideArguments,
  withApiServer,
} from './agents.ts';
import { IN_NAMESPACES, printHead, repeat, runBench, runsFlag, servicesFlag } from './harness.ts';
import { cpuSeconds, field } from './processes.ts';
import { cell, printRow, type TableRow } from './table.ts';

const LEGEND = `Mode nftables, IPv4 Services with one TCP port and 10 endpoints each, with an API server (a fake). A start is timed from
exec of the launcher, or of crun, until the kernel has all rules. Memory is resident, of the agent alone, ten seconds
later. Both variants alternate. Values are medians, with minimum and maximum.`;

const FLAGS = ['--proxy-mode=nftables', '--status-socket=none', '--conntrack-max-per-core=0'];
/** Milliseconds without changes before memory is measured. */
const SETTLE_MS = 10_000;

interface Run {
  readonly seconds: number;
  /** CPU seconds until then, without the commands it runs. */
  readonly cpu: number;
  /** MiB. */
  readonly memory: number;
}

const ROWS: readonly TableRow<Run>[] = [
  ['start, s', ({ seconds }) => seconds, 2],
  ['– CPU until then, s', ({ cpu }) => cpu, 2],
  ['– memory ten seconds later, MiB', ({ memory }) => memory, 0],
];

/** @param pidOf process id of the agent, when it serves */
async function measure(
  { spawn }: NodeWithApiServer,
  [file, ...args]: readonly [string, ...string[]],
  pidOf: (child: number) => number,
): Promise<Run> {
  const started = performance.now();
  const { pid, stdout } = spawn(file, args);
  if (stdout === null || pid === undefined) throw new Error('the agent did not start');
  await logged(stdout, 'serving', 2);
  const seconds = (performance.now() - started) / 1000;
  const agent = pidOf(pid);
  const cpu = cpuSeconds(agent);
  await sleep(SETTLE_MS);
  return { seconds, cpu, memory: field(agent, 'VmRSS') };
}

/** @param container directory in which `unpackImage` has unpacked the image */
async function measureImage(
  node: NodeWithApiServer,
  container: string,
  image: ImageConfig,
): Promise<Run> {
  const { node: namespace } = node.network;
  const lock = join(container, 'lock');
  writeFileSync(lock, '');
  const spec = { ...daemonSet().agent, args: portwideArguments(node.double, FLAGS) };
  writeContainer(container, image, spec, namespace, { 'xtables-lock': lock });
  const pidFile = join(container, 'pid');
  const run = ['run', `--pid-file=${pidFile}`, `--bundle=${container}`, namespace] as const;
  try {
    return await measure(node, ['sh', ...CRUN, ...run], () =>
      Number(readFileSync(pidFile, 'utf8')),
    );
  } finally {
    await node.spawn('sh', [...CRUN, 'delete', '--force', namespace]);
  }
}

async function diskUsage(directory: string, excluded: readonly string[] = []): Promise<number> {
  const exclude = excluded.map((name) => `--exclude=${name}`);
  const { stdout } = await execa('du', ['-s', '--block-size=1', ...exclude, directory]);
  return Number.parseInt(stdout, 10);
}

await runBench({
  name: 'dist',
  where: `${IN_NAMESPACES} Needs crun, and the image from make dist or make image.`,
  flags: { services: servicesFlag('100,1000', { quick: '100' }), runs: runsFlag('5') },
  run: async ({ services: sizes, runs }) => {
    const [architecture] =
      Object.entries(ARCHITECTURES).find(([, name]) => name === process.arch) ?? [];
    const archive = join(ROOT, 'dist', `portwide-${VERSION}-${architecture}.oci.tar`);
    const container = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
    try {
      const image = await unpackImage(archive, container);
      printHead(LEGEND);
      console.log('| Services | what | checkout | image |\n|---:|---|---:|---:|');
      const megabytes = (bytes: number) => (bytes / 1e6).toFixed();
      const checkout = await diskUsage(ROOT, ['.git', '.cache', 'dist', 'coverage']);
      const unpacked = await diskUsage(join(container, 'rootfs'));
      printRow('', 'archive, MB', '', megabytes(statSync(archive).size));
      printRow('', 'on disk, MB', megabytes(checkout), megabytes(unpacked));
      for (const services of sizes) {
        const within = (use: (node: NodeWithApiServer) => Promise<Run>) =>
          withApiServer(clusterObjects(services), use);
        const pairs = await repeat(runs, `${services} Services`, async () => ({
          checkout: await within((node) => {
            const command = [PORTWIDE, ...portwideArguments(node.double, FLAGS)] as const;
            return measure(node, command, (pid) => pid);
          }),
          image: await within((node) => measureImage(node, container, image)),
        }));
        for (const [what, of, digits] of ROWS) {
          const cells = (['checkout', 'image'] as const).map((variant) =>
            cell(
              pairs.map((pair) => of(pair[variant])),
              digits,
            ),
          );
          printRow(services, what, ...cells);
        }
      }
    } finally {
      rmSync(container, { recursive: true });
    }
  },
});
