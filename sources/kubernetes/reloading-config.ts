/** Follows a kubeconfig that is changed while the agent runs. */
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import type { SourceLog } from '../source.ts';
import { type ClusterOptions, loadClusterConfig } from './config.ts';
import type { ClusterConfig } from './credentials.ts';
import { ClusterConfigError } from './errors.ts';
import {
  createOpenSession,
  type OpenSession,
  type RequestObserver,
  type Timeouts,
} from './session.ts';

export interface ReloadingConfigContext {
  readonly timeouts: Timeouts;
  readonly observer: RequestObserver | undefined;
  readonly log: SourceLog;
}

/**
 * How to reach the API server, as the kubeconfig says it now: whoever mends its server or its
 * credentials need not restart the agent. A file that cannot be used, such as one that is half written,
 * is no change.
 */
export class ReloadingConfig {
  readonly #options: ClusterOptions;
  readonly #context: ReloadingConfigContext;
  #config: ClusterConfig;
  #open: OpenSession;
  #problem = '';
  #reading: Promise<void> | undefined;
  /** The read that is under way is not waited for any more. */
  #isOverdue = false;

  /** @param config what the options say now. */
  constructor(options: ClusterOptions, context: ReloadingConfigContext, config: ClusterConfig) {
    this.#options = options;
    this.#context = context;
    this.#config = config;
    this.#open = this.#openerFor(config);
  }

  /** Opens a session as the files say it at that time. */
  readonly open: OpenSession = async (signal) => {
    await this.#refresh(signal);
    return this.#open(signal);
  };

  /** Looks now and then whether the files say something else, until the signal is aborted. */
  watch(pollMs: number, onChange: () => void, signal: AbortSignal): void {
    // Flags and the environment of a process do not change.
    if (!this.#options.kubeconfig) return;
    let reported = this.#config;
    const poll = async () => {
      await this.#refresh(signal);
      if (signal.aborted || this.#config === reported) return;
      reported = this.#config;
      onChange();
    };
    const timer = setInterval(() => void poll(), pollMs).unref();
    signal.addEventListener('abort', () => clearInterval(timer), { once: true });
  }

  /**
   * Ends in time, also where the files are on a file system that hangs. Then no further read is begun until that one
   * has ended: a few of them would hold up all that the process does with files.
   */
  async #refresh(signal: AbortSignal): Promise<void> {
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
      this.#isOverdue = false;
    });
    if (this.#isOverdue) return;
    const timer = new AbortController();
    const { credentials: timeoutMs } = this.#context.timeouts;
    const either = AbortSignal.any([signal, timer.signal]);
    const late = sleep(timeoutMs, 'late', { signal: either }).catch(() => undefined);
    const first = await Promise.race([this.#reading, late]);
    timer.abort();
    if (first !== 'late') return;
    this.#isOverdue = true;
    const { kubeconfig = '' } = this.#options;
    const path = JSON.stringify(kubeconfig);
    this.#reportProblem(
      new ClusterConfigError(`kubeconfig ${path} cannot be read within ${timeoutMs / 1000} s`),
    );
  }

  #reportProblem(error: ClusterConfigError): void {
    if (error.message === this.#problem) return;
    this.#problem = error.message;
    const { log } = this.#context;
    log.warn({ err: error }, 'the kubeconfig cannot be used; going on as it was before');
  }

  async #read(): Promise<void> {
    const { log } = this.#context;
    try {
      const config = await loadClusterConfig(this.#options);
      this.#problem = '';
      if (isDeepStrictEqual(config, this.#config)) return;
      this.#config = config;
      this.#open = this.#openerFor(config);
      log.info({ server: config.server }, 'the kubeconfig has changed; connecting anew');
    } catch (error) {
      if (!(error instanceof ClusterConfigError)) throw error;
      this.#reportProblem(error);
    }
  }

  #openerFor(config: ClusterConfig): OpenSession {
    const { timeouts, observer } = this.#context;
    return createOpenSession(config, timeouts, observer);
  }
}
