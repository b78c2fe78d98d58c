/** The end of an agent whose configuration file has changed. */
import type { Logger } from 'pino';
import { configure } from '../config/configure.ts';
import type { FlagTexts } from '../config/flags.ts';
import type { ConfigFile } from '../config/notices.ts';
import type { RunOptions } from '../config/settings.ts';
import { type ConfigChanges, NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';
import { watchConfig } from './config-watch.ts';
import { checkSource } from './source.ts';

/** Exit status when the configuration file changed and the agent must be started again (EX_TEMPFAIL of sysexits). */
const CONFIGURATION_CHANGED = 75;

interface ConfigRestartOptions {
  readonly file: ConfigFile;
  readonly texts: FlagTexts;
  readonly options: Pick<RunOptions, 'configRestartJitter'>;
  readonly log: Logger;
  /** Ends the process. */
  readonly exit: (status: number) => void;
  readonly timers?: Timers;
  /** From 0 up to and without 1. */
  readonly random?: () => number;
}

/**
 * Ends the process when the configuration file changes, as kube-proxy does; the kubelet or systemd starts it
 * again with the new content. Differs from kube-proxy in two ways. Content that the agent could not start with is
 * ignored, because one mistake would stop the agents of all nodes. And each agent waits for a random part of
 * `--config-restart-jitter`, because a ConfigMap changes on all nodes at once and every start lists all Services.
 * @returns the changes so far, for metrics, and what ends it.
 */
export function restartOnChange(given: ConfigRestartOptions) {
  const { file, texts, options, log, exit, timers = systemTimers, random = Math.random } = given;
  const { path } = file;
  const counts = { ...NO_CONFIG_CHANGES.counts };
  let isPending = false;
  const stop = watchConfig({
    file,
    check: async (content) => checkSource(configure(texts, { path, content }).options),
    delayMs: () => Math.round(random() * options.configRestartJitter),
    timers,
    onInvalid: (reason) => {
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
        'the configuration file changed; ending for a restart after a random delay',
      );
    },
    onCancel: () => {
      isPending = false;
      counts.cancelled += 1;
      log.info(
        { file: path },
        'the configuration file is unchanged again or unusable; restart cancelled',
      );
    },
    onChange: () => {
      log.error({ file: path }, 'the configuration file changed; ending for a restart');
      exit(CONFIGURATION_CHANGED);
    },
    onReadError: (reason) =>
      log.warn({ file: path, reason }, 'cannot follow the configuration file; what was read stays'),
  });
  return { changes: (): ConfigChanges => ({ isPending, counts }), stop };
}
