/** What `portwide run` does instead of serving, when a flag says so. */
import { writeFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { isOn } from '../config/configure.ts';
import { formatNotice } from '../config/errors.ts';
import type { FlagTexts } from '../config/flags.ts';
import type { RunOptions } from '../config/settings.ts';
import { configurationText, unwritableOptions } from '../config/write.ts';
import { requireNetAdmin } from '../process/capabilities.ts';
import { UserError } from '../process/errors.ts';
import { cleanupAndReport } from '../takeover/cleanup.ts';
import { configureConntrack } from './conntrack-settings.ts';
import { pickMode } from './mode.ts';

/**
 * `--write-config-to`, `--cleanup` and `--init-only`, the first of them that was given.
 * @returns whether there was one.
 * @throws UserError
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
    await initialise(options, log);
    return true;
  }
  return false;
}

async function writeConfig(file: string, options: RunOptions, log: Logger): Promise<void> {
  for (const notice of unwritableOptions(options)) {
    log.warn({ setting: notice.subject }, formatNotice(notice));
  }
  try {
    await writeFile(file, configurationText(options));
  } catch (error) {
    throw new UserError(`--write-config-to: ${(error as Error).message}`, { cause: error });
  }
  log.info({ file }, 'wrote the configuration');
}

/** What needs more rights than rules do; an agent that starts later finds it done. */
async function initialise(options: RunOptions, log: Logger): Promise<void> {
  await requireNetAdmin('--init-only');
  const mode = await pickMode(options, log);
  // First: what it writes or loads has the kernel load nf_conntrack, without which it has no limits.
  await mode.prepare(options, log);
  await configureConntrack(options, log);
  log.info({ mode: mode.name }, 'the node is set up');
}
