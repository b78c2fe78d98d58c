import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { execa } from 'execa';
import {
  type CompletedCommand,
  fishCompletion,
  zshCompletion,
} from '../../cmd/completion-scripts.ts';
import { PORTWIDE } from '../portwide.ts';

async function script(shell: string): Promise<string> {
  return (await execa(PORTWIDE, ['completion', shell])).stdout;
}

/** Completes the last of the words in bash, which has loaded the script as users load it. */
const BASH = `
source <("$1" completion bash)
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_portwide
printf '%s\\n' "\${COMPREPLY[@]}"
`;

describe('portwide completion: bash', () => {
  const complete = async (...words: readonly string[]) => {
    const args = ['--norc', '-c', BASH, 'bash', PORTWIDE, 'portwide', ...words];
    const { stdout, stderr } = await execa('bash', args, {
      cwd: new URL('../..', import.meta.url),
    });
    assert.equal(stderr, '');
    return stdout.split('\n');
  };

  it('registers a function for portwide', async () => {
    const command = 'source <("$0" completion bash); complete -p portwide';
    const { stdout } = await execa('bash', ['--norc', '-c', command, PORTWIDE]);
    assert.equal(stdout, 'complete -F _portwide portwide');
  });

  for (const [words, expected] of [
    [['desc'], ['describe']],
    [
      ['get', ''],
      ['services', 'endpoints', 'routes', 'policies'],
    ],
    [
      ['top', ''],
      ['services', 'endpoints', 'ports'],
    ],
    [
      ['flows', '--event', 'd'],
      ['dropped', 'denied'],
    ],
    [
      ['get', 'netpol', '--state', ''],
      ['ok', 'faulty'],
    ],
    [['get', 'ep', '--tr'], ['--traffic']],
    [['describe', ''], ['service']],
    [['policy', ''], ['explain']],
    [
      ['completion', ''],
      ['bash', 'zsh', 'fish'],
    ],
    [
      ['get', 'svc', '-o', ''],
      ['wide', 'json', 'yaml', 'name'],
    ],
    [
      ['get', 'endpoints', '--output', ''],
      ['wide', 'json', 'yaml', 'name'],
    ],
    [['get', 'routes', '-o', 'n'], ['name']],
    [['get', 'policies', '-o', 'n'], ['name']],
    [['get', 'services', '--state', 'no'], ['noEndpoints']],
    // Bash splits the word at the equals sign.
    [['get', 'services', '--state', '=', 're'], ['refused']],
    [['get', 'ep', '--fam'], ['--family']],
    [['get', 'ep', '--family', 'IPv4', '--no'], ['--no-headers']],
    [['get', 'svc', '-n', ''], ['']],
    [['get', 'svc', '--status-socket', 'LICE'], ['LICENSE']],
    [['run', '--status-so'], ['--status-socket']],
    [['probe', '--status-so'], ['--status-socket']],
    [['get', 'svc', 'sh'], ['']],
  ] as const) {
    it(`completes: ${words.join(' ')}`, async () => {
      assert.deepEqual(await complete(...words), expected);
    });
  }

  it('offers every command that --help shows', async () => {
    const { stdout } = await execa(PORTWIDE, ['--help']);
    const [, list = ''] = /^Commands:\n(.*)/ms.exec(stdout) ?? [];
    const shown = [...list.matchAll(/^ {2}([a-z]+)/gm)].map(([, name]) => name);
    assert.ok(shown.length > 12);
    const offered = new Set(await complete(''));
    // commander's own.
    assert.deepEqual(
      shown.filter((name) => name !== 'help' && !offered.has(name ?? '')),
      [],
    );
  });
});

const TREE: readonly CompletedCommand[] = [
  {
    path: [],
    options: [],
    subcommands: [{ names: ['get', 'g'], description: "list: the agent's [objects]" }],
    choices: [],
  },
  {
    path: ['get'],
    options: [
      {
        flags: ['-o', '--output'],
        description: "it's a [format]",
        takesValue: true,
        takesFile: false,
        choices: ['json', 'yaml'],
      },
      {
        flags: ['--socket'],
        description: 'path',
        takesValue: true,
        takesFile: true,
        choices: [],
      },
    ],
    subcommands: [],
    choices: ['one', 'two'],
  },
];

describe('portwide completion: zsh and fish', () => {
  it('quotes descriptions for zsh', () => {
    const text = zshCompletion(TREE);
    assert.ok(text.startsWith('#compdef portwide\n'));
    assert.ok(text.includes(String.raw`'get:list\: the agent'\''s [objects]'`));
    assert.ok(text.includes(String.raw`'*--output=[it'\''s a \[format\]]:value:(json yaml)'`));
    assert.ok(text.includes("'*--socket=[path]:value:_files'"));
    assert.ok(text.includes('get) _portwide_get ;;') && text.includes('g) _portwide_g ;;'));
    assert.ok(text.includes("'1:value:(one two)'"));
  });

  it('quotes descriptions for fish', () => {
    const text = fishCompletion(TREE);
    const line = (start: string) => text.split('\n').find((each) => each.includes(start));
    assert.equal(
      line('-l output'),
      String.raw`complete -c portwide -n '__portwide_at get' -s o -l output -x -a 'json yaml' -d 'it\'s a [format]'`,
    );
    assert.match(line('-l socket') ?? '', / -l socket -r -F -d 'path'$/);
    assert.match(line('-a get ') ?? '', /-n '__portwide_ends' -a get -d 'list: /);
    assert.match(line("-a 'one two'") ?? '', /-n '__portwide_ends get'/);
  });

  // The set-up of the tests does not install these shells.
  for (const shell of ['zsh', 'fish'].filter((name) => existsSync(`/usr/bin/${name}`))) {
    it(`has a script that ${shell} can parse`, async () => {
      await execa(shell, ['-n'], { input: await script(shell) });
    });
  }

  it('defines a function for each command and alias', async () => {
    const text = await script('zsh');
    for (const name of ['_portwide', '_portwide_get', '_portwide_get_svc', '_portwide_run']) {
      assert.ok(text.includes(`\n${name}() {\n`), name);
    }
  });
});
