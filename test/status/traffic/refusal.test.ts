import assert from 'node:assert/strict';
import type { Route } from '../../../services/route.ts';
import { readPacketHeader } from '../../../status/traffic/packet.ts';
import { explainRefusal, mayRefuse, type RefusalRules } from '../../../status/traffic/refusal.ts';
import { ServiceIndex } from '../../../status/traffic/service-index.ts';
import { route } from '../../fixtures.ts';

const VIP = '10.96.0.10';
const LB = '203.0.113.5';
const NODE = '192.0.2.10';

function explain(
  routes: readonly Route[],
  packet: { source?: string; destination?: string; port?: number; protocol?: number },
  rules: Partial<RefusalRules> = {},
): string | undefined {
  const index = new ServiceIndex();
  for (const each of routes) index.replaceRoute(undefined, each);
  const { source = '198.51.100.1', destination = VIP, port = 80, protocol = 6 } = packet;
  const refusal = explainRefusal(
    {
      family: 'IPv4',
      protocol,
      source,
      destination,
      sourcePort: 40_000,
      destinationPort: port,
    },
    {
      index,
      isNodeAddress: (address) => address === NODE,
      nodeAddresses: [NODE],
      rejectsOtherPorts: 'cluster IPs',
      mayBeTranslated: false,
      ...rules,
    },
  );
  return refusal && `${refusal.event} ${refusal.service}: ${refusal.reason}`;
}

describe('explainRefusal: why an untranslated packet is rejected or dropped', () => {
  const POD = '10.244.1.11';

  it('rejects without endpoints, and drops if endpoints are only on other nodes', () => {
    assert.equal(explain([route()], {}), 'rejected default/web: no endpoint');
    assert.equal(
      explain([route({ internalLocal: true, hasEndpointsAnywhere: true })], {}),
      'dropped default/web: no endpoint on this node, and the traffic policy is Local',
    );
  });

  it('explains nothing where endpoints exist, for other addresses, and for ICMP', () => {
    assert.equal(explain([route({}, [POD])], {}), undefined);
    assert.equal(explain([route()], { destination: '10.96.0.99' }), undefined);
    assert.equal(explain([route()], { protocol: 1 }), undefined);
  });

  it('rejects a port of a cluster IP that no Service port has, only where the mode does', () => {
    assert.equal(
      explain([route({}, [POD])], { port: 81 }),
      'rejected default/web: no Service port 81/TCP',
    );
    const rules = { rejectsOtherPorts: 'none' } as const;
    assert.equal(explain([route({}, [POD])], { port: 81 }, rules), undefined);
  });

  it('rejects other ports of each VIP in mode ipvs, but not of an address of the node', () => {
    const rules = { rejectsOtherPorts: 'vips' } as const;
    const external = route({ externalIPs: [LB, NODE] }, [POD]);
    const at = (destination: string) => explain([external], { destination, port: 81 }, rules);
    assert.equal(at(LB), 'rejected default/web: no Service port 81/TCP');
    assert.equal(at(NODE), undefined);
    assert.equal(explain([external], { destination: LB, port: 81 }), undefined);
  });

  it('rejects ports outside of port ranges in every mode', () => {
    const ranges = [{ protocol: 'TCP', from: 8000, to: 8100 }] as const;
    const ranged = route({ match: { kind: 'ranges', ranges } }, [POD]);
    const rules = { rejectsOtherPorts: 'none' } as const;
    const served = { ...rules, mayBeTranslated: true };
    assert.equal(explain([ranged], { port: 8000 }, served), undefined);
    assert.equal(
      explain([ranged], { port: 8101 }, rules),
      'rejected default/web: no Service port 8101/TCP',
    );
  });

  it('drops sources outside loadBalancerSourceRanges, and no others', () => {
    const restricted = route({ loadBalancerIPs: [LB], sourceRanges: ['192.0.2.0/25'] }, [POD]);
    assert.equal(
      explain([restricted], { destination: LB }),
      'dropped default/web: source 198.51.100.1 is not in loadBalancerSourceRanges',
    );
    const allowed = { destination: LB, source: '192.0.2.1' };
    assert.equal(explain([restricted], allowed), undefined);
    // The node holds the VIP, and an address of the node is allowed.
    assert.equal(explain([restricted], { destination: LB, source: LB }), undefined);
    assert.equal(explain([restricted], {}), undefined);
  });

  it('explains node ports on node addresses only', () => {
    const nodePort = route({ nodePort: 30_080 });
    const packet = { destination: NODE, port: 30_080 };
    assert.equal(explain([nodePort], packet), 'rejected default/web: no endpoint');
    assert.equal(explain([nodePort], { ...packet, destination: '192.0.2.11' }), undefined);
  });

  it('rejects what all ports did not translate, but not where translation comes later', () => {
    const all = route({ match: { kind: 'all' } }, [POD]);
    assert.equal(explain([all], {}), 'rejected default/web: not translated');
    assert.equal(explain([all], { port: 0 }), 'dropped default/web: port 0');
    assert.equal(explain([all], {}, { mayBeTranslated: true }), undefined);
  });

  it('says why no owner gets a packet to an owned port', () => {
    const ranges = [
      { protocol: 'UDP', from: 20_000, to: 20_250 },
      { protocol: 'TCP', from: 30_000, to: 30_999 },
    ] as const;
    const owner = (ordinal: number, serves: boolean) => ({
      ...{ ordinal, serves, address: `10.244.1.1${ordinal}`, node: 'this' as const },
    });
    const owned = {
      ...{ ranges, portsPerPod: 100, udpVip: LB, priority: '', taken: new Map() },
      owners: [owner(0, true), owner(3, false)],
    };
    const fields = { match: { kind: 'ranges', ranges }, loadBalancerIPs: [LB], owned } as const;
    const at = (port: number, protocol: number, destination = LB, without = false) =>
      explain([route({ ...fields, ...(without && { owned: { ...owned, owners: [] } }) }, [POD])], {
        ...{ destination, port, protocol },
      });
    const [TCP, UDP] = [6, 17];
    const rejected = 'rejected default/web: ';
    assert.equal(
      at(20_150, UDP),
      `${rejected}no pod owns port 20150/UDP: slice 20100-20199/UDP is vacant`,
    );
    assert.equal(
      at(20_050, UDP, LB, true),
      `${rejected}no pod owns port 20050/UDP: slice 20000-20099/UDP is vacant`,
    );
    assert.equal(
      at(20_240, UDP),
      `${rejected}no pod owns port 20240/UDP: it is left over at the end of its range`,
    );
    assert.equal(
      at(30_350, TCP, VIP),
      `${rejected}pod 10.244.1.13 owns port 30350/TCP, and does not serve`,
    );
    assert.equal(at(20_050, UDP, VIP), `${rejected}owned UDP ports are served on ${LB} only`);
    assert.equal(at(30_050, TCP), `${rejected}not translated`);
    assert.equal(at(31_000, TCP), `${rejected}no Service port 31000/TCP`);
  });

  it('lets the health check node port of an all-ports VIP pass', () => {
    const all = route({
      match: { kind: 'all' },
      loadBalancerIPs: [LB],
      healthCheckNodePort: 32_000,
    });
    assert.equal(explain([all], { destination: LB, port: 32_000 }), undefined);
    assert.notEqual(explain([all], { destination: LB, port: 32_001 }), undefined);
  });

  it('selects the Routes whose packets must be logged in mode ipvs', () => {
    const later = { mayBeTranslated: true };
    assert.equal(mayRefuse(route({}, [POD]), later), false);
    assert.equal(mayRefuse(route({ externalLocal: true }, [POD]), later), true);
    assert.equal(mayRefuse(route({ sourceRanges: ['192.0.2.0/24'] }, [POD]), later), true);
    assert.equal(mayRefuse(route(), later), true);
    assert.equal(mayRefuse(route({}, [POD]), { mayBeTranslated: false }), true);
  });
});

describe('readPacketHeader: addresses and ports of a logged packet', () => {
  const ipv4 = (protocol: number, fragment: number, options: number, rest: string) => {
    const header = Buffer.from('4500003c000000004000000000000000' + '00000000', 'hex');
    header.writeUInt8(0x45 + options);
    header.writeUInt16BE(fragment, 6);
    header.writeUInt8(protocol, 9);
    Buffer.from([192, 0, 2, 1, 10, 96, 0, 10]).copy(header, 12);
    return Buffer.concat([header, Buffer.alloc(options * 4), Buffer.from(rest, 'hex')]);
  };
  const ports = (bytes: Buffer) => {
    const header = readPacketHeader(bytes);
    return header && [header.source, header.destination, header.sourcePort, header.destinationPort];
  };

  it('reads IPv4, with options, fragments and protocols without ports', () => {
    const addresses = ['192.0.2.1', '10.96.0.10'];
    assert.deepEqual(ports(ipv4(6, 0, 0, '9c400050')), [...addresses, 40_000, 80]);
    assert.deepEqual(ports(ipv4(17, 0, 2, '9c400050')), [...addresses, 40_000, 80]);
    assert.deepEqual(ports(ipv4(6, 5, 0, '9c400050')), [...addresses, 0, 0]);
    assert.deepEqual(ports(ipv4(1, 0, 0, '08000050')), [...addresses, 0, 0]);
    assert.deepEqual(ports(ipv4(6, 0, 0, '9c')), [...addresses, 0, 0]);
  });

  it('reads IPv6, with extension headers and fragments', () => {
    const ipv6 = (next: number, rest: string) => {
      const header = Buffer.alloc(40);
      header.writeUInt8(0x60);
      header.writeUInt8(next, 6);
      header.writeUInt16BE(0xfd00, 8);
      header.writeUInt8(1, 23);
      header.writeUInt16BE(0xfd00, 24);
      header.writeUInt8(2, 39);
      return Buffer.concat([header, Buffer.from(rest, 'hex')]);
    };
    const addresses = ['fd00::1', 'fd00::2'];
    assert.deepEqual(ports(ipv6(6, '9c40005000000000')), [...addresses, 40_000, 80]);
    assert.deepEqual(ports(ipv6(0, '1100000000000000' + '9c400050')), [...addresses, 40_000, 80]);
    assert.deepEqual(ports(ipv6(44, '0600000000000000' + '9c400050')), [...addresses, 40_000, 80]);
    assert.deepEqual(ports(ipv6(44, '0600010000000000' + '9c400050')), [...addresses, 0, 0]);
  });

  it('returns nothing for other bytes', () => {
    assert.equal(readPacketHeader(Buffer.alloc(0)), undefined);
    assert.equal(readPacketHeader(Buffer.alloc(60)), undefined);
    assert.equal(readPacketHeader(Buffer.from([0x45, 0, 0])), undefined);
    assert.equal(readPacketHeader(Buffer.from([0x60, 0, 0])), undefined);
  });
});
