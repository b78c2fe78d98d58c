import assert from 'node:assert/strict';
import { nftablesOptions } from '../../agent/nftables-mode.ts';
import {
  type KernelCheck,
  kernelTooOld,
  nftablesProbe,
  nftablesSupport,
} from '../../agent/nftables-support.ts';
import { IP_FAMILIES } from '../../api/objects.ts';
import { DEFAULTS } from '../../config/settings.ts';
import type { NftOperation } from '../../netlink/nftables/types.ts';

describe('nftables-mode: nftablesOptions', () => {
  it('serves node ports on localhost unless the gate of kube-proxy is off', () => {
    const rejects = (gates: Readonly<Record<string, boolean>>) => {
      const featureGates = { ...DEFAULTS.featureGates, ...gates };
      const options = { ...DEFAULTS, nodeportAddresses: ['primary', 'localhost'], featureGates };
      return nftablesOptions(options, 'IPv4', [], () => {}).rejectsOnLocalhost;
    };
    assert.equal(rejects({}), true);
    assert.equal(rejects({ KubeProxyNFTablesLocalhostNodePorts: true }), true);
    assert.equal(rejects({ KubeProxyNFTablesLocalhostNodePorts: false }), false);
  });
});

describe('nftables-support: nftablesSupport', () => {
  it('kernelTooOld requires Linux 5.13, in the format of uname', () => {
    for (const release of ['5.13.0-rc1', '5.14.0-570.el9.x86_64', '6.1.0-37-amd64', '10.0', '']) {
      assert.equal(kernelTooOld(release), undefined, release);
    }
    for (const release of ['5.12.19', '5.4.0-216-generic', '4.19.0', '5']) {
      assert.equal(kernelTooOld(release), `Linux ${release} is too old: 5.13 or later is required`);
    }
  });

  const hashes = (operations: readonly NftOperation[]) =>
    operations.some(
      (each) =>
        each.action === 'fill' &&
        [...each.chain.rules].some(({ expressions }) => expressions.includes('hash\0')),
    );

  it('asks the kernel about maps, elements and rules of all kinds, also of ports owned by pods', () => {
    for (const family of IP_FAMILIES) {
      const [declare, ...others] = nftablesProbe(family);
      assert.ok(declare?.action === 'declare');
      const names = new Set(declare.declarations.map(({ name }) => name));
      for (const name of ['service-ports', 'vip-ranges-1', 'udp-owner-vips-3', 'owned-prerouting'])
        assert.ok(names.has(name), name);
      assert.ok(others.some((each) => each.action === 'add' && each.set === 'udp-owner-vips-3'));
    }
  });

  it('reports what the kernel refuses in each family', async () => {
    const check: KernelCheck = async (family) =>
      family === 'IPv6' ? 'the kernel refuses it' : undefined;
    const { families, missing } = await nftablesSupport(undefined, check);
    assert.deepEqual([families, [...missing]], [['IPv4'], [['IPv6', 'the kernel refuses it']]]);
  });

  it('reports a kernel without module nft_hash, which can serve all other Services', async () => {
    const check: KernelCheck = async (_, operations) =>
      hashes(operations) ? 'the kernel refuses rule 0 of chain hash: ENOENT' : undefined;
    const { families, missing, hashProblem } = await nftablesSupport(undefined, check);
    assert.deepEqual([families, missing.size], [['IPv4', 'IPv6'], 0]);
    assert.match(hashProblem ?? '', /^nf_tables of this node cannot hash: .*ENOENT$/);
    assert.equal((await nftablesSupport(undefined, async () => undefined)).hashProblem, undefined);
  });
});
