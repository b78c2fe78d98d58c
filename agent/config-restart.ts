/** Exits for a restart when the configuration file changes. */
import type { Logger } from 'pino';
import { configure } from '../config/configure.ts';
import type { FlagTexts } from '../config/flags.ts';
import type { ConfigFile } from '../config/notices.ts';
import type { RunOptions } from '../config/settings.ts';
import { type ConfigChanges, NO_CONFIG_CHANGES } from '../metrics/portwide.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';
import { watchConfig } from './config-watch.ts';
import { checkSource } from './source.ts';

/** Exit status that requests a restart with the changed configuration file (EX_TEMPFAIL of sysexits). */
const CONFIGURATION_CHANGED = 75;

interface ConfigRestartOptions {
  readonly file: ConfigFile;
  readonly texts: FlagTexts;
  readonly options: Pick<RunOptions, 'configRestartJitter'>;
  readonly log: Logger;
  /** Requests the exit of the process with this status. */
  readonly exit: (status: number) => void;
  readonly timers?: Timers;
  /** Random number in [0, 1). */
  readonly random?: () => number;
}

/**
 * Exits the process when the configuration file changes, as kube-proxy does. The kubelet or systemd restarts it.
 * There are two differences from kube-proxy. Invalid content is ignored, because one mistake would stop the
 * agents of all nodes. Each agent waits for a random part of `--config-restart-jitter`, because a ConfigMap
 * changes on all nodes at once and every start lists all Services.
 * @returns counts of changes for metrics, and a function that stops watching.
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
      log.error({ file: path, reason }, 'ignoring an invalid change of the configuration file');
    },
    onWait: (milliseconds) => {
      isPending = true;
      counts.accepted += 1;
      log.warn(
        { file: path, seconds: milliseconds / 1000 },
        'configuration file changed; restarting after a random delay',
      );
    },
    onCancel: () => {
      isPending = false;
      counts.cancelled += 1;
      log.info(
        { file: path },
        'configuration file was reverted, or is invalid or unreadable; restart cancelled',
      );
    },
    onChange: () => {
      log.error({ file: path }, 'configuration file changed; exiting for a restart');
      exit(CONFIGURATION_CHANGED);
    },
    onReadError: (reason) =>
      log.warn(
        { file: path, reason },
        'cannot read the configuration file; keeping the current configuration',
      ),
    onWatchError: (err) =>
      log.warn({ file: path, err }, 'cannot watch the configuration file; polling it instead'),
  });
  return { changes: (): ConfigChanges => ({ isPending, counts }), stop };
}
