/** The DNS queries of the benchmarks, and the process that sends them. */
import { availableParallelism } from 'node:os';
import { serviceName } from './cluster.ts';
import type { DnsJobs, DnsLoad, DnsReport } from './dns-client.ts';
import { jobsOf } from './jobs.ts';

const processor = String(Math.min(1, availableParallelism() - 1));
const run = jobsOf<DnsJobs>('dns-client.ts', ['taskset', '-c', processor]);

/** Name and type of query number `index`. */
export type QuestionGenerator = (index: number) => readonly [string, string];

const web = (index: number) => `${serviceName(index)}.default.svc.cluster.local`;
export const QUESTIONS = {
  'A of a Service': (index) => [web(index), 'A'],
  'AAAA of an IPv4-only Service': (index) => [web(index), 'AAAA'],
  'nonexistent name': (index) => [`${web(index)}.default.svc.cluster.local`, 'A'],
  SRV: (index) => [`_http._tcp.${web(index)}`, 'SRV'],
} as const satisfies Record<string, QuestionGenerator>;

/** 2,000 queries, alternating between `kinds`. */
export function questionsOf(
  services: number,
  kinds: readonly QuestionGenerator[],
): ReturnType<QuestionGenerator>[] {
  return Array.from({ length: 2000 }, (_, count) => {
    const kind = kinds[count % kinds.length] ?? QUESTIONS['A of a Service'];
    return kind((count * 7919) % Math.max(1, services));
  });
}

/** Runs a client in a namespace, on the last CPU if there are two or more. */
export function askDns(namespace: string, load: DnsLoad): Promise<DnsReport> {
  return run(namespace, 'ask', load);
}
