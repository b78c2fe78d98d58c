/**
 * Completion scripts for bash, zsh and fish from a tree of commands. Pure. The scripts contain all words, so that
 * completion starts no process.
 */

export interface CompletedOption {
  /** Such as `-o` and `--output`. */
  readonly flags: readonly string[];
  readonly description: string;
  /** Whether the next word is its value. */
  readonly takesValue: boolean;
  /** Whether that is a path. */
  readonly takesFile: boolean;
  /** Values to offer. */
  readonly choices: readonly string[];
}

export interface CompletedCommand {
  /** Such as `['get', 'services']`; empty for the program. */
  readonly path: readonly string[];
  readonly options: readonly CompletedOption[];
  readonly subcommands: readonly {
    /** The name and its aliases. */
    readonly names: readonly string[];
    readonly description: string;
  }[];
  /** Values of the first argument. */
  readonly choices: readonly string[];
}

const PROGRAM = 'portwide';

/** Words after a command that are no options: subcommands by their names, or values of the argument. */
function wordsOf({ subcommands, choices }: CompletedCommand): string[] {
  return [...subcommands.map(({ names: [name = ''] }) => name), ...choices];
}

/** A POSIX shell word. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/**
 * The script for bash; needs no bash-completion package. It walks the words before the cursor to find the
 * command, then offers its words, options or values of an option.
 */
export function bashCompletion(commands: readonly CompletedCommand[]): string {
  const key = ({ path }: CompletedCommand) => quoted(path.join(' '));
  const withSubcommands = commands.filter(({ subcommands }) => subcommands.length > 0);
  const values = commands.flatMap((command) =>
    command.options
      .filter(({ takesValue }) => takesValue)
      .map(({ flags, takesFile, choices }) => {
        const patterns = flags.map((flag) => quoted(`${command.path.join(' ')}:${flag}`));
        const action = takesFile ? 'takes=file' : `takes=word words=${quoted(choices.join(' '))}`;
        return `    ${patterns.join('|')}) ${action} ;;`;
      }),
  );
  return `# bash completion for ${PROGRAM}. Load it with: source <(${PROGRAM} completion bash)
_${PROGRAM}() {
  local current=\${COMP_WORDS[COMP_CWORD]} previous= path= word index words= takes=
  # Bash splits --option=value into three words.
  [[ $current == = ]] && current=
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=\${COMP_WORDS[index]}
    case $path:$word in
${withSubcommands
  .map((command) => {
    const names = command.subcommands.flatMap((each) => each.names);
    const prefix = command.path.join(' ');
    return `      ${names.map((name) => quoted(`${prefix}:${name}`)).join('|')}) path="\${path:+$path }$word" ;;`;
  })
  .join('\n')}
    esac
    [[ $word == = ]] || previous=$word
  done
  case $path:$previous in
${values.join('\n')}
  esac
  if [[ $takes == file ]]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
    return
  fi
  if [[ $takes == word ]]; then
    :
  elif [[ $current == -* ]]; then
    case $path in
${commands.map((command) => `      ${key(command)}) words=${quoted(command.options.flatMap(({ flags }) => flags).join(' '))} ;;`).join('\n')}
    esac
  else
    case $path in
${commands.map((command) => `      ${key(command)}) words=${quoted(wordsOf(command).join(' '))} ;;`).join('\n')}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _${PROGRAM} ${PROGRAM}
`;
}

/** The script for zsh, with descriptions. */
export function zshCompletion(commands: readonly CompletedCommand[]): string {
  return `#compdef ${PROGRAM}
# zsh completion for ${PROGRAM}. Load it after compinit with: source <(${PROGRAM} completion zsh)
${commands.map(zshFunction).join('\n')}
compdef _${PROGRAM} ${PROGRAM}
`;
}

function zshName(path: readonly string[]): string {
  return ['', PROGRAM, ...path].join('_');
}

function zshFunction({ path, options, subcommands, choices }: CompletedCommand): string {
  const lines = options.flatMap(({ flags, description, takesValue, takesFile, choices: values }) =>
    flags.map((flag) => {
      const equals = takesValue && flag.startsWith('--') ? '=' : '';
      const action = takesFile ? '_files' : `(${values.join(' ')})`;
      const value = takesValue ? `:value:${action}` : '';
      return quoted(`*${flag}${equals}[${zshEscaped(description)}]${value}`);
    }),
  );
  if (subcommands.length > 0) lines.push("'1: :->command'", "'*:: :->rest'");
  else if (choices.length > 0) lines.push(quoted(`1:value:(${choices.join(' ')})`));
  const described = subcommands.map(({ names: [name = ''], description }) =>
    quoted(`${name}:${description.replaceAll(':', '\\:')}`),
  );
  const cases = subcommands.flatMap(({ names }) =>
    names.map((name) => `        ${name}) ${zshName([...path, name])} ;;`),
  );
  const dispatch = `
  case $state in
    command)
      local -a commands=(
        ${described.join('\n        ')}
      )
      _describe command commands
      ;;
    rest)
      case $line[1] in
${cases.join('\n')}
      esac
      ;;
  esac`;
  return `${zshName(path)}() {
  local state line
  typeset -A opt_args
  _arguments -C \\
    ${lines.join(' \\\n    ')}${subcommands.length > 0 ? dispatch : ''}
}`;
}

/** Brackets end a description. */
function zshEscaped(text: string): string {
  return text.replaceAll(/[[\]\\:]/g, '\\$&');
}

/** The script for fish, with descriptions. */
export function fishCompletion(commands: readonly CompletedCommand[]): string {
  const start = `# fish completion for ${PROGRAM}. Load it with: ${PROGRAM} completion fish | source
function __${PROGRAM}_at
    # Whether the words before the cursor, without options, begin with these and name no further subcommand.
    set -l words (commandline -opc)
    set -e words[1]
    set -l names (string match -v -- '-*' $words)
    test (count $names) -ge (count $argv); or return 1
    for index in (seq (count $argv))
        test "$names[$index]" = "$argv[$index]"; or return 1
    end
end
function __${PROGRAM}_ends
    __${PROGRAM}_at $argv; or return 1
    set -l words (commandline -opc)
    set -e words[1]
    test (count (string match -v -- '-*' $words)) -eq (count $argv)
end
complete -c ${PROGRAM} -f
`;
  return start + commands.flatMap(fishLines).join('');
}

function fishLines({ path, options, subcommands, choices }: CompletedCommand): string[] {
  const at = fishQuoted([`__${PROGRAM}_at`, ...path].join(' '));
  const ends = fishQuoted([`__${PROGRAM}_ends`, ...path].join(' '));
  // Options of the program itself stand before the command.
  const where = path.length === 0 ? ends : at;
  return [
    ...subcommands.map(
      ({ names: [name = ''], description }) =>
        `complete -c ${PROGRAM} -n ${ends} -a ${name} -d ${fishQuoted(description)}\n`,
    ),
    ...(choices.length === 0
      ? []
      : [`complete -c ${PROGRAM} -n ${ends} -a ${fishQuoted(choices.join(' '))}\n`]),
    ...options.map(({ flags, description, takesValue, takesFile, choices: values }) => {
      const names = flags.map((flag) =>
        flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`,
      );
      const value = takesFile ? '-r -F' : `-x -a ${fishQuoted(values.join(' '))}`;
      return `complete -c ${PROGRAM} -n ${where} ${names.join(' ')}${takesValue ? ` ${value}` : ''} -d ${fishQuoted(description)}\n`;
    }),
  ];
}

function fishQuoted(text: string): string {
  return `'${text.replaceAll(/['\\]/g, '\\$&')}'`;
}
