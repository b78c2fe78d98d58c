/**
 * Loads and changes an IPVS table in the current network namespace: by Portwide, by netlink
 * messages alone, and by commands.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { type Iptables, iptablesCommands } from '../iptables/commands.ts';
import { ipvsBackend } from '../ipvs/backend.ts';
import { IpvsKernel } from '../ipvs/kernel.ts';
import { Ipvs, type IpvsChange } from '../netlink/ipvs/ipvs.ts';
import type { Backend } from '../proxier/backend.ts';
import { systemTimers } from '../sync/timers.ts';
import { endpointAddresses, SERVICE_PORT, spareAddress, TARGET_PORT, vip } from './cluster.ts';
import { serve } from './jobs.ts';
import { compileOptions, createPortwide } from './portwide.ts';
import { idle, type LongestStalls, StallRecorder } from './stalls.ts';
import { changeKinds, type LoadOptions, runChanges, type SyncTiming } from './subject.ts';

/** A sync with the event loop stalls during it. */
export interface StalledTiming extends SyncTiming {
  readonly stalls: LongestStalls;
}

export type IpvsJobs = typeof jobs;

/** The backend of the agent. */
export async function openIpvs(kernel: IpvsKernel, iptables: Iptables): Promise<Backend> {
  const options = {
    ...compileOptions(),
    scheduler: 'rr',
    allPorts: 'fwmark',
    excludeCidrs: [],
    markRange: { first: 0x1000, last: 0x1fff },
  } as const;
  return await ipvsBackend(kernel, iptables, options, systemTimers);
}

/**
 * Measures the agent.
 * @param save path, without extension, of the files for the output of `ipvsadm --save` and `ipset
 * save` after the start; null: not written
 */
async function portwide({
  services,
  changes,
  save,
}: LoadOptions & { readonly save: string | null }) {
  const kernel = await IpvsKernel.open('IPv4');
  const stalls = new StallRecorder();
  const iptables = stalls.watchCommands(iptablesCommands('IPv4', 'legacy'));
  const backend = await openIpvs(kernel, iptables);
  const subject = createPortwide(stalls.watchBackend(backend), services);
  const timed = async (work: () => Promise<SyncTiming>) => {
    await idle();
    return await stalls.measure(work);
  };
  const start = await timed(() => subject.start());
  /** Peak resident memory, in MiB. */
  const memory = process.resourceUsage().maxRSS / 1024;
  if (save !== null) {
    writeFileSync(`${save}.ipvs`, execFileSync('ipvsadm', ['-S', '-n']));
    writeFileSync(`${save}.sets`, execFileSync('ipset', ['save']));
  }

  const first = changes > 0 ? await timed(() => subject.grow(0, 1)) : undefined;
  const grow: StalledTiming[] = [];
  for (let round = 1; round <= changes; round++) {
    grow.push(await timed(() => subject.grow(1, round)));
  }
  const made = await runChanges(changeKinds, { services, changes }, (...change) =>
    timed(() => subject.change(...change)),
  );
  await subject.stop();
  await kernel.close();
  return { start, memory, changes: first && { first, grow, ...made } };
}

/** Times only the agent's IPVS messages, and then single added destinations; milliseconds. */
async function netlink({ services, changes }: LoadOptions) {
  const ipvs = await Ipvs.open();
  const table = tableChanges(services);
  const timed = async (batch: readonly IpvsChange[]) => {
    const started = performance.now();
    const [refusal] = await ipvs.apply(batch);
    if (refusal !== undefined) throw refusal.error;
    return performance.now() - started;
  };
  const load = await timed(table);
  const single: number[] = [];
  for (let round = 0; round < changes; round++) single.push(await timed([spare(round)]));
  await ipvs.close();
  return { load, changes: single };
}

/** The agent's messages for the table, including the fwmark service of the all-ports Service. */
function tableChanges(services: number): IpvsChange[] {
  const config = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
  return Array.from({ length: services + 1 }, (_, index): IpvsChange[] => {
    const isListed = index < services;
    const key = isListed ? listedService(index) : allPortsService;
    return [
      { op: 'add-service', key, config },
      ...endpointAddresses(index).map((address) => ({
        op: 'add-destination' as const,
        key,
        destination: { address, port: isListed ? TARGET_PORT : 0, weight: 1 },
      })),
    ];
  }).flat();
}

const allPortsService = { kind: 'mark', family: 'IPv4', mark: 0x1002 } as const;

function listedService(index: number) {
  const where = { address: vip(index), port: SERVICE_PORT };
  return { kind: 'address', family: 'IPv4', protocol: 'TCP', ...where } as const;
}

/** Adds a destination to the first Service. */
function spare(number: number): IpvsChange {
  const destination = { address: spareAddress(number), port: TARGET_PORT, weight: 1 };
  return { op: 'add-destination', key: listedService(0), destination };
}

/**
 * Times commands that load the saved table and then add and remove single destinations. `ipset
 * restore` is timed separately: a proxy that runs commands needs it, too. Milliseconds.
 */
async function ipvsadm({ saved, changes }: { saved: string; changes: number }) {
  const timed = (command: string, args: readonly string[], input = '') => {
    const started = performance.now();
    execFileSync(command, args, { input });
    return performance.now() - started;
  };
  // Forking a process of this size takes longer than the command runs. A shell starts the command
  // instead, and measures with the clock of the shell, in seconds.
  const script = 'start=$EPOCHREALTIME; "$@"; echo $start $EPOCHREALTIME';
  const timedByShell = (words: readonly string[]) => {
    const output = execFileSync('bash', ['-e', '-c', script, 'bash', ...words], {
      encoding: 'utf8',
    });
    const [start = 0, end = 0] = output.split(' ').map(Number);
    return (end - start) * 1000;
  };
  const restoreSets = timed('ipset', ['restore'], readFileSync(`${saved}.sets`, 'utf8'));
  const restore = timed('ipvsadm', ['--restore'], readFileSync(`${saved}.ipvs`, 'utf8'));
  const at = ['-t', `${vip(0)}:${SERVICE_PORT}`];
  const adds: number[] = [];
  const removes: number[] = [];
  for (let round = 0; round < changes; round++) {
    const to = ['-r', `${spareAddress(round)}:${TARGET_PORT}`];
    adds.push(timedByShell(['ipvsadm', '-a', ...at, ...to, '-m', '-w', '1']));
    removes.push(timedByShell(['ipvsadm', '-d', ...at, ...to]));
  }
  return { restore, restoreSets, adds, removes };
}

const jobs = { portwide, netlink, ipvsadm };
if (import.meta.main) await serve(jobs);
