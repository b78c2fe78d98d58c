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
    .description('remove all rules and other state of Portwide and kube-proxy from this node');
  addFlags(command, { config, ipvsExcludeCidrs }).action(async (texts: FlagTexts) => {
    // If one flag took precedence, cleanup would remove IPVS services that the other flag excludes.
    if (texts.config !== undefined && texts.ipvsExcludeCidrs !== undefined) {
      throw new UserError('--config and --ipvs-exclude-cidrs are mutually exclusive');
    }
    const { options } = await loadOrWarn(texts);
    await cleanupAndReport(options.ipvsExcludeCidrs);
  });
}
