/** Traces of other proxies on this node, for `portwide check`. */
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { Ipsets } from '../../netlink/ipset/ipset.ts';
import { listTables } from '../../netlink/nftables/tables.ts';
import { listBpfPrograms } from '../../netlink/route/bpf-programs.ts';
import { countIpvsServices, readInterfaces } from '../../preflight/proc-files.ts';
import type { ProxyTraces } from '../../preflight/proxies.ts';
import { isLocked } from '../../process/lock.ts';
import { readBpfPins } from './bpf-pins.ts';
import { fact } from './fact.ts';
import { readServiceRules } from './rule-facts.ts';

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
    bpfPins: await fact(readBpfPins),
    bpfPrograms: await fact(listBpfPrograms),
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

/** The content of a file; empty if the file, or its process, does not exist. */
async function contentOf(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return '';
    throw error;
  }
}
