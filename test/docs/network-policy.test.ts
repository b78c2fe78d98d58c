import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { execa } from 'execa';
import { PORTWIDE } from '../portwide.ts';
import { consoleCommands, fencedBlocks } from './page.ts';

const file = (path: string) => new URL(`../../${path}`, import.meta.url).pathname;
const page = readFileSync(file('docs/guide/network-policy.md'), 'utf8');

describe('docs/guide/network-policy.md', () => {
  const commands = fencedBlocks(page, 'console').flatMap(consoleCommands);

  it('shows one `portwide validate` and three `portwide policy explain` commands', () => {
    const names = commands.map(({ command }) => /portwide \w+/.exec(command)?.[0]);
    const explain = 'portwide policy';
    assert.deepEqual(names, ['portwide validate', explain, explain, explain]);
  });

  for (const { command, output } of commands) {
    it(`shows the output of: ${command}`, async () => {
      const { all } = await execa('sh', ['-c', command], {
        cwd: file('.'),
        all: true,
        reject: false,
        env: { PATH: `${dirname(PORTWIDE)}:${process.env.PATH}` },
      });
      assert.equal(all, output);
    });
  }

  it('shows the policy of examples/network-policy.yaml', () => {
    const [policy = ''] = fencedBlocks(page, 'yaml');
    const example = readFileSync(file('examples/network-policy.yaml'), 'utf8');
    assert.ok(policy !== '' && example.includes(`\n${policy}---\n`));
  });
});
