import assert from 'node:assert/strict';
import { iptablesBackend } from '../../iptables/backend.ts';
import { iptablesCommands, locateLine } from '../../iptables/commands.ts';
import { waitFor } from '../lab/lab.ts';
import { FakePrograms } from '../process/fake-programs.ts';
import { options } from './options.ts';

/** For what ends by itself. */
const LONG = 60_000;

describe('commands: the line of an input that a command names by its number', () => {
  const INPUT = '*nat\n-C OUTPUT -j A\nCOMMIT\n*filter\n-C INPUT -j B\nCOMMIT\n';

  for (const [number, expected] of [
    [2, { line: '-C OUTPUT -j A', table: 'nat' }],
    [4, { line: '*filter', table: 'filter' }],
    [5, { line: '-C INPUT -j B', table: 'filter' }],
    [7, undefined],
  ] as const) {
    it(`${number}, wherever the pieces are cut`, () => {
      for (let cut = 0; cut <= INPUT.length; cut++) {
        const pieces = [INPUT.slice(0, cut), INPUT.slice(cut)];
        assert.deepEqual(locateLine(pieces, number), expected);
      }
    });
  }
});

describe('commands: the iptables commands', () => {
  const programs = new FakePrograms();
  beforeEach(() => programs.install());
  afterEach(() => programs.remove());
  /** Of those that hang; of the others, so long that it does not matter. */
  const timeouts = { read: 300, write: 300, version: 300 };
  const hung = (program: string) => ({ name: 'ProgramTimeoutError', program, timeout: 300 });

  it('end when they hang, whichever it is, and say which', async () => {
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

  it('tell that a table is there, however long it is', async () => {
    // More than what execa keeps of an output.
    programs.write('iptables-nft-save', "head -c 101000000 /dev/zero | tr '\\0' x");
    await iptablesCommands('IPv4', 'nft').probe('nat');
  });

  it('that hang in a sync are not tried with other input; the next sync does it all', async () => {
    const limits = { read: LONG, write: 300, version: LONG };
    const backend = iptablesBackend(iptablesCommands('IPv4', 'nft', limits), {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: assert.fail,
    });
    // A chain that is to be removed: a restore that is refused is tried again without the removal.
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
