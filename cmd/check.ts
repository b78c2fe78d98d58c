/** `portwide check`: checks a node before the swap of kube-proxy for Portwide, and later. */
import { type Command, Option } from 'commander';
import { collectFacts } from '../agent/preflight/collect.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { evaluate } from '../preflight/checks.ts';
import { reportOf, resultsText, worstOf } from '../preflight/result.ts';
import { type DocumentFormat, documentText } from '../status/print/documents.ts';
import { ERROR_STATUS, failsWithTwo } from './usage.ts';

const EXIT_HELP = `
Exit status:
  0  all checks are ok or warn
  1  at least one check is fail
  2  error: the settings cannot be read
`;

interface CheckFlags extends FlagTexts {
  readonly output: 'text' | DocumentFormat;
}

export function addCheckCommand(program: Command): void {
  // These flags would change the node or write a file.
  const { cleanup: _, initOnly: __, writeConfigTo: ___, ...settings } = ALL_SETTINGS;
  const command = failsWithTwo(program.command('check'))
    .description(
      'check this node and cluster for an agent with the same flags as `portwide run`; changes nothing',
    )
    .addHelpText('after', EXIT_HELP)
    .addOption(
      new Option('-o, --output <format>', 'output format')
        .choices(['text', 'json', 'yaml'])
        .default('text'),
    );
  addFlags(command, settings).action(async (texts: CheckFlags) => {
    // The status if an error is thrown below.
    process.exitCode = ERROR_STATUS;
    const { options } = await loadOrWarn(texts);
    const results = evaluate(await collectFacts(options));
    const { output } = texts;
    process.stdout.write(
      output === 'text' ? resultsText(results) : await documentText(reportOf(results), output),
    );
    process.exitCode = worstOf(results) === 'fail' ? 1 : 0;
  });
}
