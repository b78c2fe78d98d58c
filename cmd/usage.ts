/** Wrong usage of commands. */
import type { AddHelpTextContext, Command } from 'commander';

/** Exit status of an error and of wrong usage. Only servers and `cleanup` have 1, as kube-proxy. */
export const ERROR_STATUS = 2;

/** Sets the exit status of wrong usage of a command, and of its subcommands that are added later. */
export function failsWithTwo(command: Command): Command {
  return command.exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : ERROR_STATUS));
}

/** Makes `portwide nonsense --help` and `portwide help nonsense` fail: commander prints the help of the command above. */
export function refuseHelpOfUnknown(program: Command): void {
  program.on('beforeAllHelp', ({ command }: AddHelpTextContext) => {
    const isHelp = ({ args, commands }: Command) => args[0] === 'help' && commands.length > 0;
    const helper = [program, command].find(isHelp);
    if (helper !== undefined) {
      const topic = topicOf(helper, helper.args.slice(1));
      // Commander reads only one name after `help`.
      if (topic !== command) topic.help();
    } else if (command.commands.length > 0) {
      topicOf(command, command.args.slice(0, 1));
    }
  });
}

/** The command that names lead to, from a group of commands. Ends the process if there is none. */
function topicOf(group: Command, [name = '-', ...rest]: readonly string[]): Command {
  if (name.startsWith('-') || name === 'help') return group;
  const found = group.commands.find((each) => [each.name(), ...each.aliases()].includes(name));
  if (found !== undefined) return topicOf(found, rest);
  // Parsed alone, the name fails with commander's message, which suggests similar names.
  if (group.commands.length > 0) group.parse([name], { from: 'user' });
  return group.error(`error: unknown command '${name}'`);
}
