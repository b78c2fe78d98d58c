import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { constants, tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { cannotListen } from '../../agent/dns/listen.ts';
import { noMarksMessage } from '../../cmd/ipvs-marks.ts';
import { ConfigurationError } from '../../config/errors.ts';
import { NetlinkError, UnsupportedError } from '../../netlink/core/error.ts';
import { hasNetAdmin } from '../../process/capabilities.ts';
import { userMessage } from '../../process/user-message.ts';
import { PORTWIDE } from '../portwide.ts';

describe('user-message: errors that a user can fix', () => {
  it('states the problem and the remedy', () => {
    assert.equal(
      userMessage(new NetlinkError('dump of sets', constants.errno.EPERM)),
      'permission denied by the kernel (dump of sets: EPERM): run as root, or in a pod with NET_ADMIN in securityContext.capabilities.add',
    );
    assert.match(
      userMessage(new UnsupportedError('ipset')) ?? '',
      /^the kernel has no ipset: .*modprobe/,
    );
  });

  it('lists configuration errors and warnings', () => {
    const error = new ConfigurationError([{ subject: '/f: mode', message: 'must be x' }], {
      warnings: [{ subject: '/f: a', message: 'unknown field' }],
    });
    assert.equal(userMessage(error), '/f: mode: must be x\nwarning: /f: a: unknown field');
  });

  describe('when the DNS server cannot listen', () => {
    const withoutRights = ['setpriv', '--bounding-set=-all', '--inh-caps=-all'];
    for (const [title, flags, wrapper, expected] of [
      [
        'names the missing capability',
        ['--bind-address=127.0.0.1', '--port=53'],
        withoutRights,
        /^portwide: cannot listen on 127\.0\.0\.1, port 53 \(EACCES\): ports below \d+ need CAP_NET_BIND_SERVICE: .*securityContext\.capabilities\.add.*--port/,
      ],
      [
        'says that the address is not local',
        ['--bind-address=192.0.2.1', '--port=5300'],
        [],
        /^portwide: cannot listen on 192\.0\.2\.1, port 5300 \(EADDRNOTAVAIL\): .*not an address of this host.*--bind-address/,
      ],
    ] as const) {
      it(title, async () => {
        const directory = mkdtempSync(join(tmpdir(), 'portwide-dns-'));
        try {
          const command = [...wrapper, PORTWIDE, 'dns', `--manifests=${directory}`, ...flags];
          const up = ['--net', 'sh', '-c', 'ip link set lo up && exec "$@"', '-'];
          const { exitCode, stderr } = await execa('unshare', [...up, ...command], {
            reject: false,
          });
          assert.match(stderr, expected);
          assert.notEqual(exitCode, undefined);
        } finally {
          rmSync(directory, { recursive: true, force: true });
        }
      });
    }
  });

  it('says that another process uses the port', () => {
    const error = Object.assign(new Error('bind EADDRINUSE'), { code: 'EADDRINUSE' });
    assert.equal(
      cannotListen('127.0.0.1', 53, error),
      'cannot listen on 127.0.0.1, port 53 (EADDRINUSE): another process uses this port (`ss -lnp sport = :53` shows it); stop it, or choose another --port or --bind-address',
    );
  });

  it('says why `ipvs marks` has nothing to list', async () => {
    const { exitCode, stdout } = await execa('unshare', ['--net', PORTWIDE, 'ipvs', 'marks']);
    assert.equal(exitCode, 0);
    assert.match(stdout, /^no packet marks of Portwide: the ipset KUBE-MARKS does not exist.*ipvs/);
    assert.equal(
      noMarksMessage({ hasIpvs: false, hasRecord: false }),
      'no packet marks of Portwide: the ipset KUBE-MARKS does not exist, and IPVS is not loaded on this node (no /proc/net/ip_vs). Only --proxy-mode=ipvs creates it.\n',
    );
    assert.equal(
      noMarksMessage({ hasIpvs: true, hasRecord: true }),
      'no packet marks of Portwide: no Service needs a mark. All-ports Services need marks, and Services with listed ports and traffic policy Local.\n',
    );
  });

  it('returns undefined for other errors', () => {
    for (const error of [
      new TypeError('x'),
      new Error('y'),
      new NetlinkError('dump', constants.errno.EINVAL),
    ]) {
      assert.equal(userMessage(error), undefined);
    }
  });

  it('reads CAP_NET_ADMIN from /proc/PID/status', () => {
    assert.equal(hasNetAdmin('Name:\tx\nCapEff:\t0000000000001000\n'), true);
    assert.equal(hasNetAdmin('CapEff:\t000001fffeffefff\n'), false);
    assert.equal(hasNetAdmin('CapEff:\t0000000000000000\n'), false);
    assert.equal(hasNetAdmin('Name:\tx\n'), true, 'no CapEff line');
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
      [['ipvs', 'marks'], 'portwide ipvs marks'],
    ] as const) {
      it(`prints one sentence: portwide ${command.join(' ')}`, async () => {
        const flags = command[0] === 'run' ? [`--manifests=${directory}`] : [];
        // In a separate network namespace, in case the command runs anyway.
        const dropped = ['--net', 'setpriv', '--bounding-set=-all', '--inh-caps=-all'];
        const { exitCode, stderr } = await execa(
          'unshare',
          [...dropped, PORTWIDE, ...command, ...flags],
          { reject: false },
        );
        assert.equal(exitCode, 1);
        assert.equal(
          stderr,
          `portwide: ${what} needs CAP_NET_ADMIN, which this process lacks: run as root, or in a pod with NET_ADMIN in securityContext.capabilities.add`,
        );
      });
    }
  });
});
