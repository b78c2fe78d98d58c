/** `portwide cleanup`. */
import type { Command } from 'commander';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { UserError } from '../process/errors.ts';
import { cleanupAndReport } from '../takeover/cleanup.ts';

export function addCleanupCommand(program: Command): void {
  const { config, ipvsExcludeCidrs } = ALL_SETTINGS;
  const command = program
    .command('cleanup')
    .description('remove everything that Portwide or kube-proxy put on this node, in every mode');
  addFlags(command, { config, ipvsExcludeCidrs }).action(async (texts: FlagTexts) => {
    // Neither is ignored here: what it tells would be removed.
    if (texts.config !== undefined && texts.ipvsExcludeCidrs !== undefined) {
      throw new UserError('--config and --ipvs-exclude-cidrs exclude each other');
    }
    const { options } = await loadOrWarn(texts);
    await cleanupAndReport(options.ipvsExcludeCidrs);
  });
}
