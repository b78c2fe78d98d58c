/** Reloads the kubeconfig when it changes. */
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
 * The cluster configuration, reloaded from the kubeconfig while the agent runs, so that a changed
 * server or changed credentials need no restart. If the kubeconfig cannot be used, for example because
 * it is half written, the previous configuration stays in place.
 */
export class ReloadingConfig {
  readonly #options: ClusterOptions;
  readonly #context: ReloadingConfigContext;
  #config: ClusterConfig;
  #open: OpenSession;
  #problem = '';
  #reading: Promise<void> | undefined;
  /** Whether the current read has exceeded its timeout; callers do not wait for such a read. */
  #isOverdue = false;

  /** @param config The configuration that was loaded with these options. */
  constructor(options: ClusterOptions, context: ReloadingConfigContext, config: ClusterConfig) {
    this.#options = options;
    this.#context = context;
    this.#config = config;
    this.#open = this.#openerFor(config);
  }

  /** Reloads the kubeconfig and opens a session with the resulting configuration. */
  readonly open: OpenSession = async (signal) => {
    await this.#refresh(signal);
    return this.#open(signal);
  };

  /**
   * Polls the kubeconfig until the signal is aborted.
   * @param onChange called after each change of the configuration.
   */
  watch(pollMs: number, onChange: () => void, signal: AbortSignal): void {
    // Flags and environment variables of a running process do not change.
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
   * Reloads the configuration, with a timeout for file systems that hang. While a read hangs, no
   * second read starts: a few hanging reads would block all file access of the process (libuv's
   * thread pool).
   */
  async #refresh(signal: AbortSignal): Promise<void> {
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
      this.#isOverdue = false;
    });
    if (this.#isOverdue) return;
    const timer = new AbortController();
    const { credentials: timeoutMs } = this.#context.timeouts;
    const timerSignal = AbortSignal.any([signal, timer.signal]);
    const timeout = sleep(timeoutMs, 'timeout', { signal: timerSignal }).catch(() => undefined);
    const outcome = await Promise.race([this.#reading, timeout]);
    timer.abort();
    if (outcome !== 'timeout') return;
    this.#isOverdue = true;
    const { kubeconfig = '' } = this.#options;
    const path = JSON.stringify(kubeconfig);
    this.#reportProblem(
      new ClusterConfigError(
        `kubeconfig ${path} cannot be read: timed out after ${timeoutMs / 1000} s`,
      ),
    );
  }

  #reportProblem(error: ClusterConfigError): void {
    if (error.message === this.#problem) return;
    this.#problem = error.message;
    const { log } = this.#context;
    log.warn({ err: error }, 'cannot load kubeconfig; keeping the previous configuration');
  }

  async #read(): Promise<void> {
    const { log } = this.#context;
    try {
      const config = await loadClusterConfig(this.#options);
      this.#problem = '';
      if (isDeepStrictEqual(config, this.#config)) return;
      this.#config = config;
      this.#open = this.#openerFor(config);
      log.info({ server: config.server }, 'kubeconfig changed; reconnecting');
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
