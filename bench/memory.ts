/** How much memory a process and its children take. */
import { readdirSync, readFileSync } from 'node:fs';

/** MiB, resident. */
export interface Memory {
  readonly now: number;
  /** The most at one time. */
  readonly peak: number;
}

/** Milliseconds between two looks at children, which do not live long. */
const LOOK = 20;

/** Watches a process until it is asked for the last time. */
export function watchMemory(pid: number): { take(): Memory } {
  let sampled = 0;
  const look = () => {
    const now = withChildren(pid).reduce((sum, each) => sum + field(each, 'VmRSS'), 0);
    sampled = Math.max(sampled, now);
    return now;
  };
  const timer = setInterval(look, LOOK);
  return {
    take: () => {
      clearInterval(timer);
      return { now: look(), peak: Math.max(sampled, field(pid, 'VmHWM')) };
    },
  };
}

function withChildren(pid: number): number[] {
  return [pid, ...childrenOf(pid).flatMap(withChildren)];
}

function childrenOf(pid: number): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
      readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8')
        .split(' ')
        .map(Number)
        .filter(Boolean),
    );
  } catch {
    // It has ended meanwhile.
    return [];
  }
}

function field(pid: number, name: 'VmRSS' | 'VmHWM'): number {
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    return Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0) / 1024;
  } catch {
    return 0;
  }
}
