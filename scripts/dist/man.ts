/** Man pages, from what `--help` says. Syntax: man(7). */
import type { Command, Option } from 'commander';

/** What the head of each page says. */
export interface ManSource {
  readonly version: string;
  /** Seconds since 1970. */
  readonly date: number;
}

/**
 * Pages by file name: `portwide.1`, and one for each command. The page of a command also describes
 * its subcommands.
 */
export function manPages(program: Command, source: ManSource): Map<string, string> {
  const own = pageName(program);
  const names = program.commands.map(pageName);
  const pages = new Map([
    [
      `${own}.1`,
      [head(own, program.description(), source), ...body(program, 'SH'), seeAlso(names)],
    ],
  ]);
  for (const command of program.commands) {
    const name = pageName(command);
    const text = [head(name, command.description(), source), ...body(command, 'SH')];
    for (const subcommand of command.commands) {
      text.push(`.SH ${roff(`${command.name()} ${subcommand.name()}`.toUpperCase())}`);
      text.push(roff(subcommand.description()), ...body(subcommand, 'SS'));
    }
    pages.set(`${name}.1`, [...text, seeAlso([own])]);
  }
  return new Map([...pages].map(([name, text]) => [name, `${text.join('\n')}\n`]));
}

/** The page of `kubectl-portwide`. @param help its `--help` */
export function kubectlPage(help: string, source: ManSource): string {
  const name = 'kubectl-portwide';
  const title = head(name, 'run commands of portwide on the agents of nodes', source);
  return `${[title, '.SH DESCRIPTION', literal(help), seeAlso(['portwide'])].join('\n')}\n`;
}

function pageName(command: Command): string {
  const parent = command.parent;
  return parent === null ? command.name() : `${pageName(parent)}-${command.name()}`;
}

function head(name: string, description: string, { version, date }: ManSource): string {
  const day = new Date(date * 1000).toISOString().slice(0, 10);
  const line = roff(description.replace(/\.$/, ''));
  const title = `.TH ${roff(name.toUpperCase())} 1 "${day}" "portwide ${version}" "User Commands"`;
  // Without hyphens in words, and without spaces that align the right margin.
  return [title, '.nh', '.ad l', '.SH NAME', `${roff(name)} \\- ${line}`].join('\n');
}

function body(command: Command, heading: 'SH' | 'SS'): string[] {
  const help = command.createHelp();
  const section = (title: string) => `.${heading} ${roff(title.replace(/:$/, '').toUpperCase())}`;
  const item = (term: string, description: string) =>
    `.TP\n\\fB${roff(term)}\\fR\n${roff(description)}`;
  const text = [section('Synopsis'), `\\fB${roff(help.commandUsage(command))}\\fR`];
  const arguments_ = help.visibleArguments(command);
  if (arguments_.length > 0) text.push(section('Arguments'));
  for (const each of arguments_) {
    text.push(item(help.argumentTerm(each), help.argumentDescription(each)));
  }
  const groups = Map.groupBy(
    help.visibleOptions(command),
    ({ helpGroupHeading }: Option) => helpGroupHeading ?? 'Options:',
  );
  for (const [title, options] of groups) {
    text.push(section(title));
    for (const option of options) {
      text.push(item(help.optionTerm(option), help.optionDescription(option)));
    }
  }
  const subcommands = help.visibleCommands(command);
  if (subcommands.length > 0) text.push(section('Commands'));
  for (const each of subcommands) {
    text.push(item(help.subcommandTerm(each), help.subcommandDescription(each)));
  }
  return [...text, ...added(command, section)];
}

/** The text that `addHelpText` appends: headings without indentation, above indented lines. */
function added(command: Command, section: (title: string) => string): string[] {
  let output = '';
  command.configureOutput({
    writeOut: (text) => {
      output += text;
    },
  });
  command.outputHelp();
  const rest = output.slice(command.helpInformation().length).trim();
  if (rest === '') return [];
  return rest.split(/\n+(?=\S)/).map((part) => {
    const [title = '', ...lines] = part.split('\n');
    if (lines.length === 0) return `.PP\n${roff(title)}`;
    return `${section(title)}\n${literal(lines.join('\n'))}`;
  });
}

function literal(text: string): string {
  const lines = text.trimEnd().split('\n');
  return ['.nf', ...lines.map((line) => roff(line)), '.fi'].join('\n');
}

function seeAlso(names: readonly string[]): string {
  const list = names.map((name) => `\\fB${roff(name)}\\fR(1)`).join(',\n');
  return `.SH SEE ALSO\n${list}`;
}

/** Text without meaning to roff. A hyphen would become a dash, which cannot be pasted into a shell. */
function roff(text: string): string {
  return text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replaceAll('"', '\\(dq')
    .replace(/^(?=[.'])/gm, '\\&');
}
