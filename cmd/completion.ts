/** `portwide completion`: scripts that complete commands and options in a shell. */
import { Argument, type Command } from 'commander';
import {
  bashCompletion,
  type CompletedCommand,
  type CompletedOption,
  fishCompletion,
  zshCompletion,
} from './completion-scripts.ts';
import { failsWithTwo } from './usage.ts';

const SHELLS = { bash: bashCompletion, zsh: zshCompletion, fish: fishCompletion } as const;
type Shell = keyof typeof SHELLS;

const HELP = `
To load it:
  bash  source <(portwide completion bash)
  zsh   source <(portwide completion zsh)      # after compinit
  fish  portwide completion fish | source
`;

export function addCompletionCommand(program: Command): void {
  failsWithTwo(program.command('completion'))
    .description('print a script that completes commands and options in a shell')
    .addArgument(new Argument('<shell>', 'your shell').choices(Object.keys(SHELLS)))
    .addHelpText('after', HELP)
    .action((shell: Shell) => {
      process.stdout.write(SHELLS[shell](commandsOf(program)));
    });
}

/** All commands below `parent`, each with its path, such as `get services`; the program itself comes first. */
function commandsOf(parent: Command, path: readonly string[] = []): CompletedCommand[] {
  const help: CompletedOption = {
    flags: ['-h', '--help'],
    description: 'display help for command',
    takesValue: false,
    takesFile: false,
    choices: [],
  };
  const options = parent.options.map(
    ({ flags, short, long, description, required, argChoices }): CompletedOption => ({
      flags: [short, long].filter((flag) => flag !== undefined),
      description,
      takesValue: required,
      takesFile: /<(dir|file|path)>/.test(flags),
      choices: argChoices ?? [],
    }),
  );
  const subcommands = parent.commands.map((command) => ({
    names: [command.name(), ...command.aliases()],
    description: command.description(),
  }));
  const choices = parent.registeredArguments.flatMap(({ argChoices }) => argChoices ?? []);
  const own = { path, options: [...options, help], subcommands, choices };
  return [
    own,
    ...parent.commands.flatMap((command) =>
      [command.name(), ...command.aliases()].flatMap((name) =>
        commandsOf(command, [...path, name]),
      ),
    ),
  ];
}
