/** Finds the process that listens on a Unix socket. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

export interface SocketOwner {
  readonly pid: number;
  /** Stopped by a signal or a debugger. */
  readonly isStopped: boolean;
}

/** `__SO_ACCEPTCON` in the flags of /proc/net/unix: the socket listens. */
const LISTENS = 0x10000;

/** @returns undefined if the process is not visible: of another user, or in another namespace. */
export function socketOwner(path: string): SocketOwner | undefined {
  try {
    const inode = inodeOf(path);
    const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
    const pid = pids.find((each) => inode !== undefined && hasSocket(each, inode));
    if (pid === undefined) return undefined;
    const [, state = ''] = /\) (\w)/.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
    return { pid: Number(pid), isStopped: state.toUpperCase() === 'T' };
  } catch {
    // The process ended meanwhile.
    return undefined;
  }
}

function inodeOf(path: string): string | undefined {
  for (const line of readFileSync('/proc/net/unix', 'utf8').split('\n')) {
    const [, , , flags = '', , , inode, ...rest] = line.trim().split(/ +/);
    if ((Number.parseInt(flags, 16) & LISTENS) !== 0 && rest.join(' ') === path) return inode;
  }
  return undefined;
}

function hasSocket(pid: string, inode: string): boolean {
  try {
    const directory = `/proc/${pid}/fd`;
    return readdirSync(directory).some(
      (fd) => readlinkSync(`${directory}/${fd}`) === `socket:[${inode}]`,
    );
  } catch {
    return false;
  }
}
