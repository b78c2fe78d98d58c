/** Tells whether output still has a reader. */
import { libc } from './libc.ts';

/** Whether the other end of a pipe, socket or terminal is closed. Node.js notices this only when it writes. */
export function hasHungUp(fd: number): boolean {
  return libc().hasHungUp(fd);
}
