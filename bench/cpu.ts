import { readFileSync } from 'node:fs';

/** Of /proc/PID/stat, in a second. */
const TICKS = 100;

/** User and system time of a process so far, in seconds. */
export function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}
