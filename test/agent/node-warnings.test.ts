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
    it(`warns about Service rules in iptables-${other} when using iptables-${using}`, async () => {
      const holding = (holder: Variant) => async (variant: Variant) => variant === holder;
      await warnOfOtherVariant(using, log, holding(using));
      assert.deepEqual(warned, []);
      await warnOfOtherVariant(using, log, holding(other));
      const message = 'the other iptables variant has Service rules, too';
      const effect = 'its rules remain in force and are not updated';
      assert.deepEqual(warned, [[{ using, other, effect }, message]]);
    });
  }

  it('warns about bridged traffic that does not pass iptables, for the given IP families', async () => {
    const v4 = 'net.bridge.bridge-nf-call-iptables';
    const v6 = 'net.bridge.bridge-nf-call-ip6tables';
    const warn = async (
      families: readonly ('IPv4' | 'IPv6')[],
      sysctls: Record<string, string>,
    ) => {
      warned = [];
      await warnOfBridge(families, log, async (name) => sysctls[name]);
      return warned.map(([details]) => (details as { sysctl: string }).sysctl);
    };
    const both = ['IPv4', 'IPv6'] as const;
    assert.deepEqual(await warn(both, { [v4]: '0', [v6]: '0' }), [v4, v6]);
    assert.deepEqual(await warn(both, { [v4]: '1', [v6]: '0' }), [v6]);
    assert.deepEqual(await warn(['IPv4'], { [v4]: '0', [v6]: '0' }), [v4]);
    assert.deepEqual(await warn(both, {}), [], 'module br_netfilter is not loaded');
  });

  it('warns about disabled IP forwarding, for the IP families of the Node', async () => {
    const v4 = 'net.ipv4.ip_forward';
    const v6 = 'net.ipv6.conf.all.forwarding';
    const warn = async (addresses: readonly string[], sysctls: Record<string, string>) => {
      warned = [];
      await warnOfForwarding(addresses, log, async (name) => sysctls[name]);
      return warned.map(([details]) => (details as { sysctl: string }).sysctl);
    };
    const off = { [v4]: '0', [v6]: '0' };
    assert.deepEqual(await warn(['10.0.0.1', 'fd00::1', '10.0.0.2'], off), [v4, v6]);
    assert.deepEqual(await warn(['10.0.0.1'], off), [v4]);
    assert.deepEqual(await warn([], off), [v4], 'no Node');
    assert.deepEqual(await warn(['10.0.0.1', 'fd00::1'], { [v4]: '1', [v6]: '1' }), []);
  });

  it('warns about nf_conntrack_tcp_loose=0, with which connections cannot be reset', async () => {
    for (const value of ['1', undefined]) await warnOfStrictConntrack(log, async () => value);
    assert.equal(warned.length, 0);
    await warnOfStrictConntrack(log, async () => '0');
    const sysctl = 'net.netfilter.nf_conntrack_tcp_loose';
    assert.deepEqual(warned, [
      [
        { sysctl, value: '0', hint: 'set it to 1' },
        'TCP connections to deleted endpoints cannot be reset',
      ],
    ]);
  });
});

describe('node-warnings: unsupportedReason', () => {
  it('returns the error of a command that fails, and rejects when it hangs', async () => {
    const probe = (error: Error) => unsupportedReason('IPv4', () => Promise.reject(error));
    assert.equal(await probe(new Error('no such table')), 'no such table');
    await assert.rejects(probe(new ProgramTimeoutError('iptables-nft-save', 'x', 1)), {
      name: 'ProgramTimeoutError',
    });
  });
});
