import assert from 'node:assert/strict';
import {
  unsupportedReason,
  warnOfBridge,
  warnOfForwarding,
  warnOfOtherVariant,
  warnOfStrictConntrack,
} from '../../agent/node-setup.ts';
import type { Variant } from '../../iptables/commands.ts';
import { ProgramTimeoutError } from '../../process/run-program.ts';

describe('node-warnings: warnings about the node', () => {
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

  it('forwarding that is off, in the families of the Node', async () => {
    const v4 = 'net.ipv4.ip_forward';
    const v6 = 'net.ipv6.conf.all.forwarding';
    const warn = async (addresses: readonly string[], sysctls: Record<string, string>) => {
      warned = [];
      await warnOfForwarding(addresses, log, async (name) => sysctls[name]);
      return warned.map(([details]) => details);
    };
    const off = { [v4]: '0', [v6]: '0' };
    assert.deepEqual(await warn(['10.0.0.1', 'fd00::1', '10.0.0.2'], off), [
      { sysctl: v4 },
      { sysctl: v6 },
    ]);
    assert.deepEqual(await warn(['10.0.0.1'], off), [{ sysctl: v4 }]);
    assert.deepEqual(await warn([], off), [{ sysctl: v4 }], 'no Node');
    assert.deepEqual(await warn(['10.0.0.1', 'fd00::1'], { [v4]: '1', [v6]: '1' }), []);
  });

  it('conntrack that takes a packet without an entry for invalid, where connections are to be reset', async () => {
    for (const value of ['1', undefined]) await warnOfStrictConntrack(log, async () => value);
    assert.equal(warned.length, 0);
    await warnOfStrictConntrack(log, async () => '0');
    const sysctl = 'net.netfilter.nf_conntrack_tcp_loose';
    assert.deepEqual(warned, [
      [
        { sysctl },
        `${sysctl}=0: TCP connections to deleted endpoints cannot be reset; set it to 1`,
      ],
    ]);
  });
});

describe('node-warnings: whether a family can be served', () => {
  it('is told by a command that fails, and not by one that hangs', async () => {
    const probe = (error: Error) => unsupportedReason('IPv4', () => Promise.reject(error));
    assert.equal(await probe(new Error('no such table')), 'no such table');
    await assert.rejects(probe(new ProgramTimeoutError('iptables-nft-save', 'x', 1)), {
      name: 'ProgramTimeoutError',
    });
  });
});
