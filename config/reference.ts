/** docs/configuration.md. */
import { DNS_SETTINGS } from './dns-settings.ts';
import { API_VERSION, KIND } from './file.ts';
import { IGNORED_GATES } from './map-types.ts';
import { flagOf, formatDefault, GROUPS, type Group, type Setting } from './setting.ts';
import { ALL_SETTINGS, DEFAULTS } from './settings.ts';
import { configurationText } from './write.ts';

/** The text of docs/configuration.md, out of the tables of settings. */
export function referencePage(): string {
  const groups = Object.entries(GROUPS)
    .filter(([group]) => Object.values(ALL_SETTINGS).some((each) => each.group === group))
    .map(([group, title]) => section(group as Group, title));
  return `${INTRODUCTION}\n${groups.join('\n')}\n${defaultFile()}\n${dnsSection()}`;
}

const winners = Object.entries(ALL_SETTINGS)
  .filter(([, { overridesFile: winsOverFile, field }]) => winsOverFile && field !== undefined)
  .map(([name]) => code(flagOf(name)));

const INTRODUCTION = `# Configuration

<!-- \`npm run docs\` writes this page out of the tables in config/. Change those. -->

\`portwide run\` takes kube-proxy's flags and, with \`--config\`, its configuration file: a
\`${KIND}\` of \`${API_VERSION}\`, as in the ConfigMap that kubeadm makes.
What is Portwide's own is in its section \`portwide\`, which kube-proxy warns of and passes over.
\`render\`, \`validate\`, \`env\` and \`cleanup\` take \`--config\` and those flags that concern them.

- **Beside \`--config\` flags are ignored**, and a warning names them. These count: the node's name and
  logging (${winners.join(', ')}), and flags that no file can have.
- **A field that nobody knows, or that is there twice**, is warned of and passed over (of two, the last
  counts), as kube-proxy does. A value of the wrong type, or that cannot be, is an error that
  names the field. All errors are told at once, and nothing is programmed.
- **Null is the default.** So is, for most fields, what Go calls the zero value: \`""\`, \`0\`, \`0s\`,
  \`false\`, \`[]\`. Where it is not, the default below has a star: there \`0\` means 0.
- **When the content of the file changes**, the agent logs it, waits for a random time up to
  \`--config-restart-jitter\`, so that not all agents of a cluster restart in the same second, and exits with status
  75 to be started again; the rules stay. If the file is changed back during the wait, the restart is cancelled. Content that it could not start with is an error in the log, and
  the agent goes on with what it has; kube-proxy ends then too. Updates of a ConfigMap mount are
  noticed at once, those of a file behind a link to elsewhere within five seconds. (A \`subPath\` mount is
  never updated.)
- Only the first document of a YAML file counts. Durations are Go's: \`30s\`, \`1m30s\`, \`500ms\`. An on-off
  flag may stand alone (\`--masquerade-all\`) or have a value (\`--masquerade-all=false\`).
- \`--write-config-to\` writes what flags or file come to; so flags can be turned into a file.
`;

function section(group: Group, title: string): string {
  const rows = Object.entries(ALL_SETTINGS)
    .filter(([, each]) => each.group === group)
    .map(([name, each]) => row(name, each));
  const why = group === 'unused' ? 'Why' : '';
  const after = group === 'unused' ? `\n${gates()}` : '';
  const head = `| Flag | In a file | Default | ${why} |\n|---|---|---|---|`;
  return `## ${title}\n\n${head}\n${rows.join('\n')}\n${after}`;
}

function row(name: string, of: Setting<unknown>): string {
  const star = of.keepsZero ? ' \\*' : '';
  const flag = of.fileOnly ? '' : code(flagOf(name));
  const field = of.field === undefined ? '' : code(of.field);
  return `| ${flag} | ${field} | ${shownCell(of)}${star} | ${fullText(of)} |`;
}

function fullText({ help: text, details: more }: Setting<unknown>): string {
  return more === undefined ? text : `${text}. ${more}`;
}

function shownCell(of: Setting<unknown>): string {
  const usual = formatDefault(of);
  return usual === '' || of.defaultText !== undefined ? usual : code(usual);
}

/** Flags of `portwide dns`, which reads no file. */
function dnsSection(): string {
  const rows = Object.entries(DNS_SETTINGS).map(
    ([name, of]: [string, Setting<unknown>]) =>
      `| ${code(flagOf(name))} | ${shownCell(of)} | ${fullText(of)} |`,
  );
  return `## \`portwide dns\`

Flags alone; no file has them. [dns.md](dns.md) says what the server answers.

| Flag | Default | |
|---|---|---|
${rows.join('\n')}
`;
}

function gates(): string {
  return `And in \`featureGates\`: ${IGNORED_GATES.map(code).join(', ')}. Others are warned of.\n`;
}

function defaultFile(): string {
  return `## A file with all defaults

\`\`\`yaml
${configurationText(DEFAULTS)}\`\`\`
`;
}

function code(text: string): string {
  return `\`${text}\``;
}
