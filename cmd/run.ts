/** `portwide run`. */
import type { Command } from 'commander';
import { runAgent } from '../agent/agent.ts';
import { runOneShot } from '../agent/one-shot.ts';
import { loadConfiguration } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { createLog } from '../process/log.ts';
import { surviveShortages } from '../process/shortage.ts';
import { addVersionFlag } from './version.ts';

export function addRunCommand(program: Command): void {
  const command = program
    .command('run')
    .description('run the node agent: serve Services on this node until SIGTERM');
  addVersionFlag(addFlags(command, ALL_SETTINGS)).action(run);
}

async function run(texts: FlagTexts): Promise<void> {
  const loaded = await loadConfiguration(texts);
  const log = createLog(loaded.options);
  surviveShortages(log);
  for (const warning of loaded.warnings) {
    log.warn({ setting: warning.subject }, warning.message);
  }
  if (await runOneShot(texts, loaded.options, log)) return;
  process.exit(await runAgent(loaded, texts, log));
}
