/** CPU time and memory of processes. */
import { readdirSync, readFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';

/** Clock ticks per second in /proc/PID/stat. */
const TICKS = 100;

/**
 * Time that the threads of a process ran so far, and that they were ready but waited for a core, in nanoseconds. Threads that
 * ended do not count.
 */
export function schedule(pid: number): { readonly ran: number; readonly waited: number } {
  const threads = readdirSync(`/proc/${pid}/task`).map((thread) =>
    readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ').map(Number),
  );
  const sum = (field: number) => threads.reduce((total, each) => total + (each[field] ?? 0), 0);
  return { ran: sum(0), waited: sum(1) };
}

/** Time that the threads of a process ran so far, in nanoseconds. Threads that ended do not count. */
export function cpuNanoseconds(pid: number): number {
  return schedule(pid).ran;
}

/** User and system time of a process so far, in seconds. */
export function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

/** Runs `work` and measures the longest event loop stall during it, in milliseconds. */
export async function withStall<Result>(
  work: () => Promise<Result>,
): Promise<{ readonly result: Result; readonly stall: number }> {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  delay.enable();
  const result = await work();
  delay.disable();
  return { result, stall: delay.max / 1e6 };
}

/** Milliseconds between samples; child processes are short-lived. */
const SAMPLE_PERIOD = 20;

/**
 * Samples the resident memory of a process and its children until `take` is called, which returns
 * the current value and the peak in MiB.
 */
export function watchMemory(pid: number) {
  let sampled = 0;
  const look = () => {
    const now = withChildren(pid).reduce((sum, each) => sum + field(each, 'VmRSS'), 0);
    sampled = Math.max(sampled, now);
    return now;
  };
  const timer = setInterval(look, SAMPLE_PERIOD);
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
    // The process has exited meanwhile.
    return [];
  }
}

/** A field of /proc/PID/status or a similar file, in MiB; 0 if the process has exited. */
export function field(pid: number, name: string, file = 'status'): number {
  try {
    const text = readFileSync(`/proc/${pid}/${file}`, 'utf8');
    return Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? 0) / 1024;
  } catch {
    return 0;
  }
}
