/** Traces of other proxies on this node, for `portwide check`. */
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { Ipsets } from '../../netlink/ipset/ipset.ts';
import { listTables } from '../../netlink/nftables/tables.ts';
import { countIpvsServices, readInterfaces } from '../../preflight/proc-files.ts';
import type { ProxyTraces } from '../../preflight/proxies.ts';
import { isLocked } from '../../process/lock.ts';
import { fact } from './fact.ts';
import { readServiceRules } from './rule-facts.ts';

/** Where the data planes of Cilium and Calico pin maps. */
const BPF_MAPS = '/sys/fs/bpf/tc/globals';

export async function readTraces(): Promise<ProxyTraces> {
  return {
    processes: await fact(processNames),
    interfaces: await fact(async () =>
      readInterfaces(await readFile('/proc/self/net/dev', 'utf8')),
    ),
    serviceRules: await fact(readServiceRules),
    tables: await fact(async () => (await listTables()).map(({ name }) => name)),
    ipsets: await fact(ipsetNames),
    ipvsServices: await fact(async () =>
      countIpvsServices(await contentOf('/proc/self/net/ip_vs')),
    ),
    bpfMaps: await fact(bpfMaps),
    isAgentRunning: await isLocked(),
  };
}

async function processNames(): Promise<string[]> {
  const ids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const names = await Promise.all(ids.map((id) => contentOf(`/proc/${id}/comm`)));
  return [...new Set(names.map((name) => name.trim()))];
}

/** Does not open ipset if its module is not loaded: opening loads it. */
async function ipsetNames(): Promise<string[]> {
  if (!existsSync('/sys/module/ip_set')) return [];
  const sets = await Ipsets.open();
  try {
    return (await sets.list()).map(({ name }) => name);
  } finally {
    await sets.close();
  }
}

async function bpfMaps(): Promise<string[]> {
  const mounts = await readFile('/proc/self/mounts', 'utf8');
  if (!/ \/sys\/fs\/bpf bpf /.test(mounts)) throw new Error('no bpf file system at /sys/fs/bpf');
  return existsSync(BPF_MAPS) ? await readdir(BPF_MAPS) : [];
}

/** The content of a file; empty if the file, or its process, does not exist. */
async function contentOf(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return '';
    throw error;
  }
}
