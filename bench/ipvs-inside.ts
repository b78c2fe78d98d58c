/**
 * Runs inside user-mode-linux, started by ipvs.ts: all jobs, in a new network namespace for each of
 * Portwide, netlink and ipvsadm.
 * Arguments: number of Services, number of runs, and the report file.
 */
import { renameSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { ENDPOINTS } from './cluster.ts';
import type { IpvsJobs } from './ipvs-process.ts';
import { jobsOf, type Report } from './jobs.ts';

/** Results of all runs. */
export type IpvsMeasured = typeof measured;

const runJob = jobsOf<IpvsJobs>('ipvs-process.ts');
/** Name of the namespace; only one exists at a time. */
const NAMESPACE = 'bench';
const CHANGES = 11;
/** Header lines of /proc/net/ip_vs. */
const HEADER_LINES = 3;
/** Milliseconds that the kernel needs to tear down a deleted namespace. */
const SETTLE = 2000;

const [services = 0, runs = 0] = process.argv.slice(2, 4).map(Number);
const report = process.argv[4] ?? '';
/** Number of services and destinations in the IPVS table, including the all-ports Service. */
const ITEMS = (services + 1) * (1 + ENDPOINTS);
const saved = join(tmpdir(), 'bench');

const portwide: Report<IpvsJobs, 'portwide'>[] = [];
const restarts: Report<IpvsJobs, 'portwide'>[] = [];
const netlink: Report<IpvsJobs, 'netlink'>[] = [];
const commands: Report<IpvsJobs, 'ipvsadm'>[] = [];
for (let run = 1; run <= runs; run++) {
  const say = (text: string) => console.log(`run ${run} of ${runs}: ${text}`);
  await inNamespace(async (check) => {
    const save = run === 1 ? saved : null;
    const first = await runJob(NAMESPACE, 'portwide', { services, changes: 0, save });
    say(`first full sync: ${first.start.total.toFixed(2)} s`);
    await check(ITEMS);
    portwide.push(first);
    const again = { services, changes: CHANGES, save: null };
    restarts.push(await runJob(NAMESPACE, 'portwide', again));
    say(`restart: ${restarts.at(-1)?.start.total.toFixed(2)} s`);
  });
  await inNamespace(async (check) => {
    netlink.push(await runJob(NAMESPACE, 'netlink', { services, changes: CHANGES }));
    say(`IPVS netlink: ${netlink.at(-1)?.load.toFixed(0)} ms`);
    await check(ITEMS + CHANGES);
  });
  await inNamespace(async (check) => {
    commands.push(await runJob(NAMESPACE, 'ipvsadm', { saved, changes: CHANGES }));
    say(`ipvsadm --restore: ${commands.at(-1)?.restore.toFixed(0)} ms`);
    await check(ITEMS);
  });
}

const measured = {
  kernel: (await execa('uname', ['-r'])).stdout,
  ipvsadm: (await execa('ipvsadm', ['--version'])).stdout,
  portwide,
  restarts,
  netlink,
  commands,
};
writeFileSync(`${report}.part`, JSON.stringify(measured));
renameSync(`${report}.part`, report);

/** @param use gets a function that checks the number of items in the IPVS table. */
async function inNamespace(
  use: (check: (items: number) => Promise<void>) => Promise<void>,
): Promise<void> {
  const within = ['netns', 'exec', NAMESPACE];
  await execa('ip', ['netns', 'add', NAMESPACE]);
  // IPVS accepts a destination as unicast only if the namespace has an address.
  await execa('ip', ['-n', NAMESPACE, 'link', 'set', 'lo', 'up']);
  await use(async (items) => {
    const { stdout } = await execa('ip', [...within, 'cat', '/proc/net/ip_vs']);
    const found = stdout.split('\n').length - HEADER_LINES;
    if (found !== items) throw new Error(`the IPVS table has ${found} items, expected ${items}`);
  });
  await execa('ip', [...within, 'ipvsadm', '-C']);
  await execa('ip', ['netns', 'delete', NAMESPACE]);
  await sleep(SETTLE);
}
