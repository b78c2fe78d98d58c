import assert from 'node:assert/strict';
import type { IpFamily } from '../../api/objects.ts';
import { DEFAULTS, type RunOptions } from '../../config/settings.ts';
import {
  listedNodePortAddresses,
  nodePortAddresses,
  nonPodClients,
  trafficOptions,
} from '../../traffic/options.ts';

const POD_CIDRS = ['10.244.1.0/24', 'fd00:10:244:1::/64'];
const CIDR = { kind: 'cidr', cidr: '10.244.0.0/16' } as const;

describe('options: traffic options', () => {
  const detector = (fields: Partial<RunOptions>, family: IpFamily = 'IPv4') =>
    trafficOptions({ ...DEFAULTS, ...fields }, family, POD_CIDRS).localDetector;

  it('detects local pods by the mode in --detect-local-mode', () => {
    const clusterCidr = ['10.244.0.0/16', 'fd00:10:244::/48'];
    assert.deepEqual(detector({ clusterCidr }), CIDR);
    assert.deepEqual(detector({ clusterCidr }, 'IPv6'), { ...CIDR, cidr: 'fd00:10:244::/48' });
    assert.equal(detector({ clusterCidr: ['10.244.0.0/16'] }, 'IPv6'), undefined);
    assert.equal(detector({}), undefined);
    const nodeCidr = { detectLocalMode: 'NodeCIDR' } as const;
    assert.deepEqual(detector({ ...nodeCidr, clusterCidr }), { ...CIDR, cidr: '10.244.1.0/24' });
    assert.deepEqual(detector(nodeCidr, 'IPv6'), { ...CIDR, cidr: 'fd00:10:244:1::/64' });
    assert.deepEqual(detector({ detectLocalMode: 'BridgeInterface', podBridgeInterface: 'cbr0' }), {
      kind: 'interface',
      name: 'cbr0',
    });
    const byPrefix = {
      detectLocalMode: 'InterfaceNamePrefix',
      podInterfaceNamePrefix: 'veth',
    } as const;
    assert.deepEqual(detector(byPrefix), { kind: 'interface', name: 'veth+' });
  });

  it('counts all clients as non-pods with --masquerade-all, and none without a local detector', () => {
    const of = (masqueradeAll: boolean, localDetector: typeof CIDR | undefined) =>
      nonPodClients({ masqueradeAll, localDetector });
    assert.equal(of(false, undefined), 'none');
    assert.equal(of(false, CIDR), CIDR);
    assert.equal(of(true, CIDR), 'all');
    assert.equal(of(true, undefined), 'all');
  });

  it('serves node ports on a selected IPv4 loopback address if the mode can, never on IPv6 loopback', () => {
    const own = {
      IPv4: { addresses: ['127.0.0.1', '192.0.2.1'], primary: ['192.0.2.1'] },
      IPv6: { addresses: ['2001:db8::1', '::1'], primary: ['2001:db8::1'] },
    };
    const served = (family: IpFamily, selection: readonly string[], servesLoopback: boolean) =>
      nodePortAddresses({ family, nodePortSelection: selection }, own[family], servesLoopback);
    const named = (family: IpFamily, selection: readonly string[]) =>
      listedNodePortAddresses({ family, nodePortSelection: selection }, own[family]);
    assert.equal(served('IPv4', [], false), 'all');
    assert.deepEqual(served('IPv4', ['primary', 'localhost'], true), ['127.0.0.1', '192.0.2.1']);
    assert.deepEqual(served('IPv4', ['primary', 'localhost'], false), ['192.0.2.1']);
    assert.deepEqual(served('IPv6', ['primary', 'localhost'], true), ['2001:db8::1']);
    assert.deepEqual(named('IPv4', ['all']), ['192.0.2.1']);
    assert.deepEqual(named('IPv6', []), ['2001:db8::1']);
    assert.deepEqual(named('IPv4', ['localhost']), []);
  });
});
