/** The actions of `portwide run` that exit instead of serving. */
import { writeFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { isOn } from '../config/configure.ts';
import type { FlagTexts } from '../config/flags.ts';
import type { RunOptions } from '../config/settings.ts';
import { configurationText, unwritableOptions } from '../config/write.ts';
import { requireNetAdmin } from '../process/capabilities.ts';
import { UserError } from '../process/errors.ts';
import { cleanupAndReport } from '../takeover/cleanup.ts';
import { configureConntrack } from './conntrack-settings.ts';
import { pickMode } from './mode.ts';

/**
 * Runs the first of `--write-config-to`, `--cleanup` and `--init-only` that is set.
 * @returns whether one of the flags is set; the process must then exit.
 * @throws UserError if the action fails.
 */
export async function runOneShot(
  texts: FlagTexts,
  options: RunOptions,
  log: Logger,
): Promise<boolean> {
  if (texts.writeConfigTo !== undefined && texts.writeConfigTo !== '') {
    await writeConfig(texts.writeConfigTo, options, log);
    return true;
  }
  if (isOn(texts, 'cleanup')) {
    await cleanupAndReport(options.ipvsExcludeCidrs);
    return true;
  }
  if (isOn(texts, 'initOnly')) {
    await initialize(options, log);
    return true;
  }
  return false;
}

async function writeConfig(file: string, options: RunOptions, log: Logger): Promise<void> {
  for (const notice of unwritableOptions(options)) {
    log.warn(
      { setting: notice.subject, reason: notice.message },
      'option cannot be expressed in a configuration file',
    );
  }
  try {
    await writeFile(file, configurationText(options));
  } catch (error) {
    throw new UserError(`--write-config-to: ${(error as Error).message}`, { cause: error });
  }
  log.info({ file }, 'wrote the configuration file');
}

/** Does the setup that needs more than CAP_NET_ADMIN, so that the agent can run with CAP_NET_ADMIN alone. */
async function initialize(options: RunOptions, log: Logger): Promise<void> {
  await requireNetAdmin('--init-only');
  const mode = await pickMode(options, log);
  // Prepare the mode first: the rules of iptables and the modules of ipvs load nf_conntrack, which creates its sysctls.
  await mode.prepare(options, log);
  await configureConntrack(options, log);
  log.info({ mode: mode.name }, 'node initialized');
}
