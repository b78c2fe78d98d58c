import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { forPeople } from '../../cmd/for-people.ts';
import { mayAdministerNetwork } from '../../cmd/rights.ts';
import { NetlinkError, UnsupportedError } from '../../netlink/error.ts';
import { PORTWIDE } from '../portwide.ts';

describe('what a user can put right', () => {
  it('is told in a sentence, with what to do', () => {
    assert.equal(
      forPeople(new NetlinkError('dump of sets', constants.errno.EPERM)),
      'the kernel refuses it (dump of sets: EPERM): run it as root, or in a pod with NET_ADMIN in securityContext.capabilities.add',
    );
    assert.match(
      forPeople(new UnsupportedError('ipset')) ?? '',
      /^the kernel has no ipset: .*modprobe/,
    );
  });

  it('is no mistake of the code', () => {
    for (const error of [
      new TypeError('x'),
      new Error('y'),
      new NetlinkError('dump', constants.errno.EINVAL),
    ]) {
      assert.equal(forPeople(error), undefined);
    }
  });

  it('is the capability, as /proc has it', () => {
    assert.equal(mayAdministerNetwork('Name:\tx\nCapEff:\t0000000000001000\n'), true);
    assert.equal(mayAdministerNetwork('CapEff:\t000001fffeffefff\n'), false);
    assert.equal(mayAdministerNetwork('CapEff:\t0000000000000000\n'), false);
    assert.equal(mayAdministerNetwork('Name:\tx\n'), true, 'nothing is said of it');
  });

  describe('without CAP_NET_ADMIN', () => {
    let directory: string;
    before(() => {
      directory = mkdtempSync(join(tmpdir(), 'portwide-rights-'));
    });
    after(() => rmSync(directory, { recursive: true, force: true }));

    for (const [command, what] of [
      [['run'], 'portwide run'],
      [['run', '--init-only'], '--init-only'],
      [['run', '--cleanup'], 'removing rules'],
      [['cleanup'], 'removing rules'],
      [['ipvs', 'marks'], 'reading packet marks'],
    ] as const) {
      it(`is one sentence of: portwide ${command.join(' ')}`, async () => {
        const flags = command[0] === 'run' ? [`--manifests=${directory}`] : [];
        // In a network namespace of its own: it must not do what it is tried for.
        const dropped = ['--net', 'setpriv', '--bounding-set=-all', '--inh-caps=-all'];
        const { exitCode, stderr } = await execa(
          'unshare',
          [...dropped, PORTWIDE, ...command, ...flags],
          { reject: false },
        );
        assert.equal(exitCode, 1);
        assert.equal(
          stderr,
          `portwide: ${what} needs CAP_NET_ADMIN, which this process does not have: run it as root, or in a pod with NET_ADMIN in securityContext.capabilities.add`,
        );
      });
    }
  });
});
