/** `portwide dns`. */
import type { Command } from 'commander';
import { runDnsServer } from '../agent/dns/server.ts';
import { configureDns } from '../config/configure-dns.ts';
import { DNS_SETTINGS } from '../config/dns-settings.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { createLog } from '../process/log.ts';
import { surviveShortages } from '../process/shortage.ts';

export function addDnsCommand(program: Command): void {
  const command = program
    .command('dns')
    .description("run the DNS server: answer queries for the cluster's Services until SIGTERM");
  addFlags(command, DNS_SETTINGS).action(run);
}

async function run(texts: FlagTexts): Promise<void> {
  const options = configureDns(texts);
  const log = createLog(options);
  surviveShortages(log);
  await runDnsServer(options, log);
  process.exit(0);
}
