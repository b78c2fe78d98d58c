import assert from 'node:assert/strict';
import type { Node, ServiceCidr } from '../../api/objects.ts';
import { readObject } from '../../api/read-object.ts';
import { type IgnoredServiceCidr, ServiceCidrs } from '../../proxier/service-cidrs.ts';

const cidr = (name: string, ...cidrs: string[]) => {
  const raw = {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name, uid: `uid-${name}` },
    spec: { cidrs },
  };
  return readObject(raw, ['ServiceCIDR']) as ServiceCidr;
};
const node = (name: string, addresses: readonly string[], podCIDRs: readonly string[] = []) => {
  const raw = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name },
    spec: { podCIDRs },
    status: { addresses: addresses.map((address) => ({ type: 'InternalIP', address })) },
  };
  return readObject(raw, ['Node']) as Node;
};

describe('service-cidrs: ServiceCidrs', () => {
  let changes: (readonly string[])[];
  let ignored: string[];
  const store = (given: readonly string[] = [], clusterCidr: readonly string[] = []) => {
    changes = [];
    ignored = [];
    const cidrs: ServiceCidrs = new ServiceCidrs({
      nodeName: 'node-a',
      given,
      clusterCidr,
      onChange: () => changes.push(cidrs.cidrs),
      onIgnored: ({ object, cidr: which, reason }: IgnoredServiceCidr) =>
        ignored.push(`${object.name}: ${which} ${reason}`),
    });
    return cidrs;
  };

  it('has the CIDRs of all objects and of the flag, each once, and reports changes', () => {
    const cidrs = store(['10.96.0.0/16']);
    assert.deepEqual(cidrs.cidrs, ['10.96.0.0/16']);
    cidrs.upsert(cidr('kubernetes', '10.96.0.5/16', 'FD00:96::/112'));
    cidrs.upsert(cidr('more', '10.97.0.0/16'));
    cidrs.upsert(cidr('more', '10.97.0.0/16'));
    cidrs.upsert(node('node-a', ['192.0.2.1']));
    cidrs.remove('ServiceCIDR', 'kubernetes');
    cidrs.remove('Service', 'more');
    assert.deepEqual(changes, [
      ['10.96.0.0/16', 'fd00:96::/112'],
      ['10.96.0.0/16', '10.97.0.0/16', 'fd00:96::/112'],
      ['10.96.0.0/16', '10.97.0.0/16'],
    ]);
    assert.deepEqual(ignored, []);
  });

  it('ignores CIDRs of ServiceCIDRs with addresses of this node or of pods, with one report each', () => {
    const cidrs = store([], ['10.244.0.0/16']);
    cidrs.upsert(node('node-b', ['10.96.0.9']));
    cidrs.upsert(cidr('all', '0.0.0.0/0', '::/0'));
    cidrs.upsert(cidr('wide', '10.0.0.0/8'));
    cidrs.upsert(cidr('nodes', '192.0.2.0/24'));
    assert.deepEqual(cidrs.cidrs, ['192.0.2.0/24']);
    cidrs.upsert(node('node-a', ['192.0.2.1'], ['10.244.1.0/24']));
    assert.deepEqual(cidrs.cidrs, []);
    cidrs.upsert(cidr('good', '10.96.0.0/16'));
    assert.deepEqual(cidrs.cidrs, ['10.96.0.0/16']);
    assert.deepEqual(ignored, [
      'all: 0.0.0.0/0 contains every address',
      'all: ::/0 contains every address',
      'wide: 10.0.0.0/8 contains pod CIDR 10.244.0.0/16',
      'wide: 10.0.0.0/8 contains pod CIDR 10.244.1.0/24, pod CIDR 10.244.0.0/16',
      'nodes: 192.0.2.0/24 contains node address 192.0.2.1',
    ]);
    cidrs.upsert(node('node-a', ['198.51.100.1'], ['10.244.1.0/24']));
    assert.deepEqual(cidrs.cidrs, ['10.96.0.0/16', '192.0.2.0/24']);
  });

  it('refuses a ServiceCIDR with an unreadable CIDR, or with two of one family', () => {
    assert.throws(() => cidr('a', '10.96.0.0'), /spec\.cidrs\[0\]/);
    assert.throws(() => cidr('a', '10.96.0.0/16', '10.97.0.0/16'), /spec\.cidrs/);
  });
});
