/** What must hold while no object changes. Each check returns what does not hold. */
import { readdirSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Host } from '../../lab/lab.ts';
import type { SteadyNode } from './stage.ts';

/** Milliseconds. */
const DEADLINE = 60_000;
const PAUSE = 200;
/** Most differences that are shown. */
const SHOWN = 5;

/** Repeats a check until everything holds, or until the deadline. */
export async function settle(check: () => Promise<readonly string[]>): Promise<readonly string[]> {
  const end = performance.now() + DEADLINE;
  for (;;) {
    const wrong = await check();
    if (wrong.length === 0 || performance.now() > end) return wrong;
    await sleep(PAUSE);
  }
}

/** What `portwide diff` says. */
export async function differences({ host, ask }: SteadyNode): Promise<readonly string[]> {
  const { text, exitCode } = await ask('diff');
  return exitCode === 0 ? [] : text.split('\n', SHOWN).map((line) => `${host.name}: ${line}`);
}

/**
 * UDP conntrack entries that lead to something else than a current endpoint.
 * @param endpoints by VIP
 * @param kept VIPs that always have endpoints: a flow that is not translated is lost.
 */
export async function staleFlows(
  { name, exec }: Host,
  endpoints: ReadonlyMap<string, ReadonlySet<string>>,
  kept: ReadonlySet<string>,
): Promise<readonly string[]> {
  const dumps = await Promise.all(
    ['ipv4', 'ipv6'].map((family) => exec('conntrack', ['-L', '-p', 'udp', '-f', family])),
  );
  const isStale = (line: string) => {
    const [, vip = ''] = / dst=(\S+)/.exec(line) ?? [];
    const [, from = ''] = / src=.* src=(\S+)/.exec(line) ?? [];
    const current = endpoints.get(vip);
    if (current === undefined || current.has(from)) return false;
    return from !== vip || kept.has(vip);
  };
  const stale = dumps.flatMap(({ stdout }) => stdout.split('\n').filter(isStale));
  return stale.slice(0, SHOWN).map((line) => `${name}: ${line}`);
}

/** Resources of the kernel that a process holds. */
export interface Held {
  readonly threads: number;
  readonly descriptors: number;
}

/** @throws Error if the process has exited. */
export function heldBy(pid: number): Held {
  return {
    threads: readdirSync(`/proc/${pid}/task`).length,
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
  };
}
