import assert from 'node:assert/strict';
import { iptablesBackend } from '../../iptables/backend.ts';
import { iptablesCommands, locateLine } from '../../iptables/commands.ts';
import { waitFor } from '../lab/lab.ts';
import { FakePrograms } from '../process/fake-programs.ts';
import { options } from './options.ts';

/** Timeout of commands that end on their own. */
const LONG = 60_000;

describe('commands: the input line of a reported number', () => {
  const INPUT = '*nat\n-C OUTPUT -j A\nCOMMIT\n*filter\n-C INPUT -j B\nCOMMIT\n';

  for (const [number, expected] of [
    [2, { line: '-C OUTPUT -j A', table: 'nat' }],
    [4, { line: '*filter', table: 'filter' }],
    [5, { line: '-C INPUT -j B', table: 'filter' }],
    [7, undefined],
  ] as const) {
    it(`finds line ${number}, wherever chunks are split`, () => {
      for (let cut = 0; cut <= INPUT.length; cut++) {
        const pieces = [INPUT.slice(0, cut), INPUT.slice(cut)];
        assert.deepEqual(locateLine(pieces, number), expected);
      }
    });
  }
});

describe('commands: iptables commands', () => {
  const programs = new FakePrograms();
  beforeEach(() => programs.install());
  afterEach(() => programs.remove());
  /** Short, for commands that hang. */
  const timeouts = { read: 300, write: 300, version: 300 };
  const hung = (program: string) => ({ name: 'ProgramTimeoutError', program, timeout: 300 });

  it('kills a command that hangs, and names it in the error', async () => {
    for (const end of ['', '-save', '-restore'])
      programs.write(`iptables-nft${end}`, 'exec sleep 1000');
    const iptables = iptablesCommands('IPv4', 'nft', timeouts);
    const [saves, restores] = [hung('iptables-nft-save'), hung('iptables-nft-restore')];
    await assert.rejects(iptables.version(), {
      ...hung('iptables-nft'),
      message: '"iptables-nft --version" exceeded its time limit of 0.3 s and was killed',
    });
    for (const [work, expected] of [
      [() => iptables.save(), saves],
      [() => iptables.saveTable('nat'), saves],
      [() => iptables.probe('nat'), saves],
      [() => iptables.restore(['*nat\nCOMMIT\n']), restores],
      [() => iptables.check('*nat\nCOMMIT\n'), restores],
    ] as const) {
      await assert.rejects(work(), expected);
    }
  });

  it('finds a table of any size', async () => {
    // More output than execa buffers.
    programs.write('iptables-nft-save', "head -c 101000000 /dev/zero | tr '\\0' x");
    await iptablesCommands('IPv4', 'nft').probe('nat');
  });

  it('does not retry a hung restore with other input, and writes everything in the next sync', async () => {
    const limits = { read: LONG, write: 300, version: LONG };
    const backend = iptablesBackend(iptablesCommands('IPv4', 'nft', limits), {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: assert.fail,
    });
    // A chain to remove: a rejected restore would be retried without the removal.
    const stale = ['mangle', 'nat', 'filter'].map(
      (table) => `*${table}\\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\\nCOMMIT\\n`,
    );
    programs.write('iptables-nft-save', `printf '${stale.join('')}'`);
    programs.write('iptables-nft-restore', 'echo run >>"$0.runs"; exec sleep 1000');
    await assert.rejects(backend.apply(true), hung('iptables-nft-restore'));
    assert.equal(programs.read('iptables-nft-restore.runs'), 'run\n');

    limits.write = LONG;
    programs.write('iptables-nft-restore', 'grep "^[*]" >>"$0.tables"');
    await waitFor('the one that hung has ended', async () => {
      const { written } = await backend.apply(true).catch(() => ({ written: 0 }));
      return written > 0;
    });
    assert.deepEqual(programs.read('iptables-nft-restore.tables').trim().split('\n').sort(), [
      '*filter',
      '*mangle',
      '*nat',
    ]);
  });
});
