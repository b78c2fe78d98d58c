import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import type { DnsLoad, DnsReport } from './dns-client.ts';

const CLIENT = fileURLToPath(new URL('dns-client.ts', import.meta.url));

/** Has a client in a namespace send queries, on the last processor where there are two. */
export async function askDns(namespace: string, load: DnsLoad): Promise<DnsReport> {
  const processor = String(Math.min(1, availableParallelism() - 1));
  const command = ['taskset', '-c', processor, process.execPath, CLIENT];
  const args = ['netns', 'exec', namespace, ...command];
  const { stdout } = await execa('ip', args, { input: JSON.stringify(load) });
  return JSON.parse(stdout) as DnsReport;
}
