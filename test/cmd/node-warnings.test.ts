import assert from 'node:assert/strict';
import {
  warnOfBridge,
  warnOfOtherVariant,
  warnOfStrictConntrack,
  whyNot,
} from '../../cmd/node-setup.ts';
import type { Variant } from '../../iptables/commands.ts';
import { ProgramTimeoutError } from '../../programs/run.ts';

describe('warnings about the node', () => {
  let warned: [details: object, message: string][];
  const log = {
    info: assert.fail,
    error: assert.fail,
    warn: (details: object, message: string) => void warned.push([details, message]),
  };
  beforeEach(() => {
    warned = [];
  });

  for (const [using, other] of [
    ['nft', 'legacy'],
    ['legacy', 'nft'],
  ] as const) {
    it(`rules for Services in iptables-${other}, beside ${using}`, async () => {
      const holding = (holder: Variant) => async (variant: Variant) => variant === holder;
      await warnOfOtherVariant(using, log, holding(using));
      assert.deepEqual(warned, []);
      await warnOfOtherVariant(using, log, holding(other));
      const message = `iptables-${other} has rules for Services too; they stay in force as they are, and nothing updates them`;
      assert.deepEqual(warned, [[{ using, other }, message]]);
    });
  }

  it('bridges that iptables does not see, of the families that there are', async () => {
    const v4 = 'net.bridge.bridge-nf-call-iptables';
    const v6 = 'net.bridge.bridge-nf-call-ip6tables';
    const warn = async (
      families: readonly ('IPv4' | 'IPv6')[],
      sysctls: Record<string, string>,
    ) => {
      warned = [];
      await warnOfBridge(families, log, async (name) => sysctls[name]);
      return warned.map(([details]) => details);
    };
    const both = ['IPv4', 'IPv6'] as const;
    assert.deepEqual(await warn(both, { [v4]: '0', [v6]: '0' }), [{ sysctl: v4 }, { sysctl: v6 }]);
    assert.deepEqual(await warn(both, { [v4]: '1', [v6]: '0' }), [{ sysctl: v6 }]);
    assert.deepEqual(await warn(['IPv4'], { [v4]: '0', [v6]: '0' }), [{ sysctl: v4 }]);
    assert.deepEqual(await warn(both, {}), [], 'no bridge calls iptables, for there is no module');
  });

  it('conntrack that takes a packet without an entry for invalid, where connections are to be reset', async () => {
    for (const value of ['1', undefined]) await warnOfStrictConntrack(log, async () => value);
    assert.equal(warned.length, 0);
    await warnOfStrictConntrack(log, async () => '0');
    assert.deepEqual(
      warned.map(([details]) => details),
      [{ sysctl: 'net.netfilter.nf_conntrack_tcp_loose' }],
    );
  });
});

describe('whether a family can be served', () => {
  it('is told by a command that fails, and not by one that hangs', async () => {
    const probe = (error: Error) => whyNot('IPv4', () => Promise.reject(error));
    assert.equal(await probe(new Error('no such table')), 'no such table');
    await assert.rejects(probe(new ProgramTimeoutError('iptables-nft-save', 'x', 1)), {
      name: 'ProgramTimeoutError',
    });
  });
});
