import type { Logger } from 'pino';
import { type ConfigFile, configure } from '../config/configure.ts';
import type { FlagTexts } from '../config/flags.ts';
import { type ConfigChanges, NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import { systemTimers, type Timers } from '../proxier/runner.ts';
import { watchConfig } from './config-watch.ts';
import { checkSource } from './configuration.ts';

/** Exit status of an agent that ends to be started with another configuration file (EX_TEMPFAIL). */
export const CONFIGURATION_CHANGED = 75;

export interface ConfigRestartOptions {
  readonly file: ConfigFile;
  readonly texts: FlagTexts;
  /** Milliseconds: `--config-restart-jitter`. */
  readonly jitter: number;
  readonly log: Logger;
  /** Ends the process. */
  readonly exit?: (status: number) => void;
  readonly timers?: Timers;
  /** From 0 up to and without 1. */
  readonly random?: () => number;
}

/** A configuration file that is followed. */
export interface ConfigRestart {
  /** For metrics. */
  readonly changes: () => ConfigChanges;
  readonly stop: () => void;
}

/**
 * As kube-proxy: who runs the agent starts it again, with the new configuration. Unlike it, an agent
 * goes on when none would start with that: one mistake would end those of all nodes. Nor do the agents of a
 * cluster end together, for a ConfigMap changes on all nodes at once: each waits by chance.
 */
export function restartOnChange(options: ConfigRestartOptions): ConfigRestart {
  const { file, texts, jitter, log, exit = process.exit, random = Math.random } = options;
  const { path } = file;
  const counts = { ...NO_CONFIG_CHANGES.counts };
  let isPending = false;
  const stop = watchConfig({
    file,
    check: async (content) => checkSource(configure(texts, { path, content }).options),
    delayMs: () => Math.round(random() * jitter),
    timers: options.timers ?? systemTimers,
    onUnusable: (reason) => {
      counts.unusable += 1;
      log.error(
        { file: path, reason },
        'the configuration file changed and cannot be used; what was read stays',
      );
    },
    onWait: (milliseconds) => {
      isPending = true;
      counts.accepted += 1;
      log.warn(
        { file: path, seconds: milliseconds / 1000 },
        'the configuration file changed; ending for a restart soon',
      );
    },
    onCancel: () => {
      isPending = false;
      counts.withdrawn += 1;
      log.info({ file: path }, 'the change of the configuration file is withdrawn; no restart');
    },
    onChange: () => {
      log.error({ file: path }, 'the configuration file changed; ending for a restart');
      exit(CONFIGURATION_CHANGED);
    },
    onProblem: (reason) =>
      log.warn({ file: path, reason }, 'cannot follow the configuration file; what was read stays'),
  });
  return { changes: () => ({ isPending, counts }), stop };
}
