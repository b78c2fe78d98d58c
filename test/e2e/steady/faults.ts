/** Faults during churn. The number of the step decides which come: a slow machine gets the same faults. */
import type { WatchBreakage } from '../../api-server/double.ts';
import type { Random } from '../../random.ts';
import type { Stage, SteadyNode } from './stage.ts';

/** Number of steps between two faults of a kind. */
export interface FaultPeriods {
  readonly kill: number;
  readonly flush: number;
  readonly cut: number;
  readonly restart: number;
}

/** From a change of a table by another program until the agent has repaired it; milliseconds since 1970. */
export interface FlushWindow {
  readonly host: string;
  readonly family: string;
  readonly from: number;
  until: number;
}

export type FaultKind = 'kill' | 'flush' | 'cut' | 'restart';

const BREAKAGES: readonly WatchBreakage[] = ['end', 'end half', 'cut', 'cut half', 'expire'];
/** What another program does to the table of an agent. */
const FLUSHES = [
  'flush table ip portwide',
  'flush table ip6 portwide',
  'flush chain ip portwide nat-prerouting',
  'flush map ip portwide service-ports',
  'flush map ip portwide endpoints',
];
/** Number of steps that the API server is away. */
const AWAY = 10;
/** Lines of the log of an agent that does not start. */
const SHOWN = 20;

export class SteadyFaults {
  readonly #stage: Stage;
  readonly #random: Random;
  readonly #periods: FaultPeriods;
  readonly counts: Record<FaultKind, number> = { kill: 0, flush: 0, cut: 0, restart: 0 };
  readonly windows: FlushWindow[] = [];
  syncs = 0;
  #restarting: Promise<void> | undefined;
  #backAt = 0;
  #failure: unknown;

  constructor(stage: Stage, random: Random, periods: FaultPeriods) {
    this.#stage = stage;
    this.#random = random;
    this.#periods = periods;
  }

  /** @throws what a restart of the agent failed with. */
  async step(step: number): Promise<void> {
    if (this.#failure !== undefined) throw this.#failure;
    const { kill, flush, cut, restart } = this.#periods;
    const { double, killed, living } = this.#stage;
    this.readLogs();
    if (step % kill === 0) this.#kill();
    if (step % flush === 0) await this.#flush((step / flush) % 2 === 0 ? killed : living);
    if (step === this.#backAt) await this.#open();
    if (this.#backAt >= step) return;
    if (step % cut === 0) {
      await double.call('breakWatches', this.#random.pick(BREAKAGES));
      this.counts.cut += 1;
    }
    if (step % restart === 0) {
      await double.call('close');
      this.counts.restart += 1;
      this.#backAt = step + AWAY;
    }
  }

  /** The API server and both agents run. */
  async end(): Promise<void> {
    if (this.#backAt > 0) await this.#open();
    await this.#restarting;
    if (this.#failure !== undefined) throw this.#failure;
  }

  #kill(): void {
    if (this.#restarting !== undefined) return;
    this.readLogs();
    const { agent } = this.#stage.killed;
    const restart = async () => {
      try {
        await agent.kill();
        await agent.start();
        this.counts.kill += 1;
      } catch (error) {
        const log = agent.log.slice(-SHOWN).map((line) => JSON.stringify(line));
        this.#failure = new Error(`the agent does not start again: ${log.join('\n')}`, {
          cause: error,
        });
      }
      this.#restarting = undefined;
    };
    this.#restarting = restart();
  }

  /** Counts syncs, and notes which tables are repaired. */
  readLogs(): void {
    const { killed, living } = this.#stage;
    for (const { host, agent } of [killed, living]) {
      if (host === killed.host && this.#restarting !== undefined) continue;
      for (const { msg, family, full, time, seconds } of agent.log.splice(0)) {
        if (msg !== 'synced') continue;
        this.syncs += 1;
        if (full !== true) continue;
        // A full sync that began before the flush may have missed it; another one follows.
        const began = Number(time) - Number(seconds) * 1000;
        for (const window of this.windows) {
          const isSame = window.host === host.name && window.family === family;
          if (isSame && window.until === Infinity && began >= window.from) {
            window.until = Number(time);
          }
        }
      }
    }
  }

  async #flush({ host }: SteadyNode): Promise<void> {
    const flush = this.#random.pick(FLUSHES);
    const family = flush.includes(' ip6 ') ? 'IPv6' : 'IPv4';
    const from = Date.now();
    // A map may be gone while the agent writes its table again.
    const { exitCode } = await host.exec('nft', [flush], { reject: false });
    if (exitCode !== 0) return;
    this.counts.flush += 1;
    this.windows.push({ host: host.name, family, from, until: Infinity });
  }

  async #open(): Promise<void> {
    this.#backAt = 0;
    await this.#stage.double.call('listen');
  }
}
