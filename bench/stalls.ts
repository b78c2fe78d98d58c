/** Measures event loop stalls by cause. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Iptables } from '../iptables/commands.ts';
import type { Backend } from '../proxier/backend.ts';

/** The longest stall of each kind in milliseconds. */
export interface LongestStalls {
  /** Before the backend writes to the kernel: resolving and compiling Services. */
  compile: number;
  /** While the backend writes to the kernel. */
  apply: number;
  /** Starting a command, which copies this process (fork). */
  start: number;
}

/** Milliseconds between samples; shorter stalls are not detected. */
const RESOLUTION = 2;

export class StallRecorder {
  #longest: LongestStalls = { compile: 0, apply: 0, start: 0 };
  #kind: keyof LongestStalls = 'compile';
  #last = 0;

  /** Measures the stalls while `work` runs. */
  async measure<T>(work: () => Promise<T>): Promise<T & { readonly stalls: LongestStalls }> {
    this.#longest = { compile: 0, apply: 0, start: 0 };
    this.#kind = 'compile';
    this.#last = performance.now();
    const timer = setInterval(() => this.#sample(), RESOLUTION);
    try {
      const result = await work();
      this.#sample();
      return { ...result, stalls: this.#longest };
    } finally {
      clearInterval(timer);
    }
  }

  watchBackend(backend: Backend): Backend {
    return {
      family: backend.family,
      setNodeAddresses: (addresses) => backend.setNodeAddresses(addresses),
      update: (upserts, removals) => backend.update(upserts, removals),
      findDrift: () => backend.findDrift(),
      close: () => backend.close(),
      apply: (full) => {
        this.#sample();
        this.#kind = 'apply';
        return backend.apply(full);
      },
    };
  }

  watchCommands(iptables: Iptables): Iptables {
    return {
      ...iptables,
      save: () => this.#started(() => iptables.save()),
      restore: (input) => this.#started(() => iptables.restore(input)),
    };
  }

  /** The process has been started when the call returns. */
  #started<T>(call: () => T): T {
    this.#sample();
    const kind = this.#kind;
    this.#kind = 'start';
    const result = call();
    this.#sample();
    this.#kind = kind;
    return result;
  }

  #sample(): void {
    const now = performance.now();
    this.#longest[this.#kind] = Math.max(this.#longest[this.#kind], now - this.#last);
    this.#last = now;
  }
}

/** Waits for 10 ms, so that pending work of the event loop can finish. */
export function idle(): Promise<void> {
  return sleep(5 * RESOLUTION);
}
