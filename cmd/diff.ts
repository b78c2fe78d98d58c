/** `portwide diff`: what differs between the kernel and the rules that should be there. */
import { type Command, Option } from 'commander';
import { UserError } from '../process/errors.ts';
import type { KernelDiff } from '../status/api/kernel.ts';
import { type DocumentFormat, documentText } from '../status/print/documents.ts';
import { DIFF_COLUMNS, kernelDiffText } from '../status/print/kernel-diff.ts';
import { tableText } from '../status/print/table.ts';
import { unsyncedText } from '../status/views/unsynced.ts';
import {
  addStatusCommand,
  EXIT,
  exitHelp,
  namespaceOption,
  type StatusCommandOptions,
  statusSocketOption,
  withAgent,
} from './status-command.ts';

/** The most that the agent lists. It counts the others. */
const MAX_ITEMS = 1000;

interface DiffOptions extends StatusCommandOptions {
  readonly namespace?: string;
  readonly family?: string;
  readonly headers: boolean;
  readonly output?: DocumentFormat | 'short';
}

export function addDiffCommand(program: Command): void {
  addStatusCommand(
    program,
    'diff',
    'show what differs between the kernel (-) and the rules that the agent wants (+)',
  )
    .addOption(namespaceOption())
    .addOption(
      new Option('-o, --output <format>', 'short: a table with one row').choices([
        ...['short', 'json', 'yaml'],
      ]),
    )
    .option('--no-headers', 'with -o short: no header')
    .addOption(new Option('--family <family>', 'only this IP family').choices(['IPv4', 'IPv6']))
    .addOption(statusSocketOption())
    .addHelpText(
      'after',
      exitHelp('no differences', 'there are differences, or an IP family is not synced'),
    )
    .action(({ namespace, family, output, headers, ...options }: DiffOptions) =>
      withAgent(options, async ({ client, style, print }) => {
        const diff = await client.get<KernelDiff>(
          '/api/v1/diff',
          [...(['items', 'compared', 'different'] as const), 'inProgress', 'omitted', 'unsynced'],
          { namespace, family, limit: MAX_ITEMS },
        );
        // Every mode has rules, also without Services.
        if (diff.compared === 0) {
          const reasons = ['its rules are not written yet', ...diff.unsynced.map(unsyncedText)];
          throw new UserError(`the agent compared nothing: ${reasons.join('; ')}`);
        }
        if (output === 'short') {
          print(tableText(DIFF_COLUMNS, [diff], 0, { noHeaders: !headers, style }));
        } else {
          print(
            output === undefined ? kernelDiffText(diff, style) : await documentText(diff, output),
          );
        }
        return diff.different + diff.unsynced.length === 0 ? EXIT.ok : EXIT.no;
      }),
    );
}
