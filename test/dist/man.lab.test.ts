import assert from 'node:assert/strict';
import { execa } from 'execa';
import { createProgram } from '../../cmd/program.ts';
import { kubectlPage, manPages } from '../../scripts/dist/man.ts';

const SOURCE = { version: '1.2.3', date: 1_700_000_000 };

async function readPage(page: string) {
  return execa('groff', ['-man', '-Tutf8', '-ww', '-P-cbou'], { input: page });
}

describe('man pages', () => {
  it('one page for each command, which groff reads without warnings', async () => {
    const program = await createProgram();
    const pages = manPages(program, SOURCE);
    const names = program.commands.map((command) => `portwide-${command.name()}.1`);
    assert.deepEqual([...pages.keys()], ['portwide.1', ...names]);
    for (const [name, page] of pages) {
      const { stdout, stderr } = await readPage(page);
      assert.equal(stderr, '', name);
      assert.match(stdout, /^NAME\n +portwide.* - \S/m, name);
    }
  });

  it('the page of a command has its flags, choices, exit statuses and examples', async () => {
    const page = manPages(await createProgram(), SOURCE).get('portwide-trace.1') ?? '';
    const { stdout } = await readPage(page);
    assert.match(stdout, /^PORTWIDE-TRACE\(1\) +User Commands/);
    assert.match(stdout, /portwide 1\.2\.3 +2023-11-14/);
    assert.match(stdout, /^OPTIONS\n +-/m);
    assert.match(stdout, /^ +--port <port>$/m);
    assert.match(stdout, /^EXIT STATUS\n +0 {2}the connection reaches/m);
    assert.match(stdout, /^ +portwide trace 10\.244\.1\.7 default\/web$/m);
    assert.match(page, /choices: \\\(dqjson/);
  });

  it('the page of a command describes its subcommands, and groups of flags', async () => {
    const pages = manPages(await createProgram(), SOURCE);
    assert.match((await readPage(pages.get('portwide-get.1') ?? '')).stdout, /^GET SERVICES$/m);
    assert.match((await readPage(pages.get('portwide-run.1') ?? '')).stdout, /^MODE IPTABLES$/m);
  });

  it('the page of kubectl-portwide has its help, in which no line is a request to roff', async () => {
    const { stdout, stderr } = await readPage(kubectlPage("--a \\x\n.so file\n'tis", SOURCE));
    assert.equal(stderr, '');
    assert.match(stdout, /^ +--a \\x\n +\.so file\n +'tis$/m);
  });
});
