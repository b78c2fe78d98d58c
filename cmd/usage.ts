/** Wrong usage of commands. */
import type { AddHelpTextContext, Command } from 'commander';

/** Exit status of an error and of wrong usage. Only servers and `cleanup` have 1, as kube-proxy. */
export const ERROR_STATUS = 2;

/** Sets the exit status of wrong usage of a command, and of its subcommands that are added later. */
export function failsWithTwo(command: Command): Command {
  return command.exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : ERROR_STATUS));
}

/** Makes `portwide nonsense --help` fail: commander prints the help of the command above. */
export function refuseHelpOfUnknown(program: Command): void {
  program.on('beforeAllHelp', ({ command }: AddHelpTextContext) => {
    const [name = '-'] = command.args;
    const names = command.commands.flatMap((each) => [each.name(), ...each.aliases()]);
    if (names.length === 0 || name.startsWith('-') || [...names, 'help'].includes(name)) return;
    command.error(`error: unknown command '${name}'`);
  });
}
