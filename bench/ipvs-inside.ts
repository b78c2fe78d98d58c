/** Runs inside user-mode-linux, started by ipvs.ts: all jobs, each in a network namespace of its own. */
import { renameSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { ENDPOINTS } from './cluster.ts';
import type {
  IpvsadmReport,
  IpvsJob,
  IpvsMeasured,
  NetlinkReport,
  PortwideReport,
} from './ipvs-jobs.ts';
import { runScript } from './jobs.ts';

const PROCESS = fileURLToPath(new URL('ipvs-process.ts', import.meta.url));
const CHANGES = 11;
/** Of /proc/net/ip_vs. */
const HEADER_LINES = 3;
/** Milliseconds in which the kernel takes down a namespace that was deleted. */
const SETTLE = 2000;

const { values } = parseArgs({
  options: {
    services: { type: 'string', default: '' },
    runs: { type: 'string', default: '' },
    report: { type: 'string', default: '' },
  },
});
const services = Number(values.services);
/** Services, the one on every port included, and their destinations. */
const ITEMS = (services + 1) * (1 + ENDPOINTS);
const runs = Number(values.runs);
const saved = join(tmpdir(), 'bench');

const portwide: PortwideReport[] = [];
const restarts: PortwideReport[] = [];
const netlink: NetlinkReport[] = [];
const commands: IpvsadmReport[] = [];
for (let run = 1; run <= runs; run++) {
  const say = (text: string) => console.log(`run ${run} of ${runs}: ${text}`);
  const start = { kind: 'portwide', services } as const;

  await inNamespace(async (go, check) => {
    const save = run === 1 ? saved : undefined;
    const first = (await go({ ...start, changes: 0, save })) as PortwideReport;
    say(`first full sync: ${first.start.total.toFixed(2)} s`);
    await check(ITEMS);
    portwide.push(first);
    const again = (await go({ ...start, changes: CHANGES, save: undefined })) as PortwideReport;
    say(`restart: ${again.start.total.toFixed(2)} s`);
    restarts.push(again);
  });
  await inNamespace(async (go, check) => {
    const report = (await go({ kind: 'netlink', services, changes: CHANGES })) as NetlinkReport;
    say(`IPVS netlink: ${report.load.toFixed(0)} ms`);
    await check(ITEMS + CHANGES);
    netlink.push(report);
  });
  await inNamespace(async (go, check) => {
    const report = (await go({ kind: 'ipvsadm', saved, changes: CHANGES })) as IpvsadmReport;
    say(`ipvsadm --restore: ${report.restore.toFixed(0)} ms`);
    await check(ITEMS);
    commands.push(report);
  });
}

const measured: IpvsMeasured = {
  kernel: (await execa('uname', ['-r'])).stdout,
  ipvsadm: (await execa('ipvsadm', ['--version'])).stdout,
  portwide,
  restarts,
  netlink,
  commands,
};
writeFileSync(`${values.report}.part`, JSON.stringify(measured));
renameSync(`${values.report}.part`, values.report);

/** @param use gets what runs a job there, and what checks how much the IPVS table holds. */
async function inNamespace(
  use: (
    go: (job: IpvsJob) => Promise<unknown>,
    check: (items: number) => Promise<void>,
  ) => Promise<void>,
): Promise<void> {
  const name = 'bench';
  const within = ['netns', 'exec', name];
  await execa('ip', ['netns', 'add', name]);
  // Without an address in the namespace IPVS takes no destination for a unicast one.
  await execa('ip', ['-n', name, 'link', 'set', 'lo', 'up']);
  await use(
    (job) => runScript(name, PROCESS, job),
    async (items) => {
      const { stdout } = await execa('ip', [...within, 'cat', '/proc/net/ip_vs']);
      const found = stdout.split('\n').length - HEADER_LINES;
      if (found !== items) throw new Error(`IPVS has ${found} items, not ${items}`);
    },
  );
  await execa('ip', [...within, 'ipvsadm', '-C']);
  await execa('ip', ['netns', 'delete', name]);
  await sleep(SETTLE);
}
