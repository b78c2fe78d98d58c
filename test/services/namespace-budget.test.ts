import assert from 'node:assert/strict';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import {
  entryBudget,
  entryCost,
  portCost,
  rangeBudget,
  rangeCost,
} from '../../services/namespace-budget.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { service, servicePort } from '../fixtures.ts';

const ports = (fields: Partial<Service>) => servedPorts(service(fields), ALL_PORT_FEATURES).ports;
/** A Service with `count` ranges. */
const ranges = (count: number) =>
  ports({ portsAnnotation: Array.from({ length: count }, (_, at) => `${2 * at + 1}/UDP`).join() });

describe('namespace-budget: what ranges cost', () => {
  it('counts ranges, slices and sources once for each VIP', () => {
    const balanced = {
      type: 'LoadBalancer' as const,
      loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' as const }],
    };
    assert.equal(rangeCost(ports({})), 0);
    assert.equal(rangeCost(ports({ portsAnnotation: 'all' })), 0);
    assert.equal(rangeCost(ports({ portsAnnotation: '5060/UDP,8000-9000/TCP' })), 2);
    assert.equal(rangeCost(ports({ ...balanced, portsAnnotation: '5060/UDP,8000-9000/TCP' })), 4);
    const owned = { ownedPortsAnnotation: '20000-20999/UDP', portsPerPodAnnotation: '100' };
    assert.equal(rangeCost(ports(owned)), 1 + 10);
    const sources = { ...balanced, loadBalancerSourceRanges: ['10.0.0.0/8', '192.0.2.0/24'] };
    assert.equal(rangeCost(ports({ ...sources, portsAnnotation: '1/UDP,3/UDP' })), 2 * 2 + 2);
    // Sources of owned ports are elements for each range, in a set that costs its size.
    assert.equal(rangeCost(ports({ ...sources, ...owned })), 2 * (1 + 10) + 2 * 256);
    const two = { ...owned, ownedPortsAnnotation: '20000-20999/UDP,30000-30999/UDP' };
    assert.equal(rangeCost(ports({ ...sources, ...two })), 2 * (2 + 20) + 2 * 2 * 256);
  });

  it('counts each port in a mode that writes ports one by one, also for each source', () => {
    const cost = (fields: Partial<Service>) => portCost(ports(fields));
    assert.equal(cost({ portsAnnotation: 'all' }), 0);
    assert.equal(cost({ portsAnnotation: '5060/UDP,8000-8999/TCP' }), 1001);
    const sources = { loadBalancerSourceRanges: ['10.0.0.0/8', '192.0.2.0/24'] };
    const balanced = {
      type: 'LoadBalancer' as const,
      loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' as const }],
    };
    assert.equal(cost({ ...balanced, ...sources, portsAnnotation: '1-10/UDP' }), 2 * 10 + 10 * 2);
  });
});

/** A Service with so many listed ports and external IPs. */
const listed = (count: number, externalIPs: number, fields: Partial<Service> = {}) =>
  ports({
    ports: Array.from({ length: count }, (_, at) => servicePort({ name: `p${at}`, port: at + 1 })),
    externalIPs: Array.from({ length: externalIPs }, (_, at) => `203.0.${at >> 8}.${at & 255}`),
    ...fields,
  });

describe('namespace-budget: what listed ports cost', () => {
  it('counts listed ports and their source ranges once for each VIP', () => {
    assert.equal(entryCost(listed(1, 0)), 1);
    assert.equal(entryCost(listed(3, 4)), 3 * 5);
    const balanced = {
      type: 'LoadBalancer' as const,
      loadBalancerIngress: [{ ip: '198.51.100.1', ipMode: 'VIP' as const }],
      loadBalancerSourceRanges: ['10.0.0.0/8', '192.0.2.0/24'],
    };
    assert.equal(entryCost(listed(3, 4, balanced)), 3 * (6 + 2));
    assert.equal(entryCost(listed(3, 4, { clusterIPs: ['10.96.0.1', 'fd00::1'] })), 3 * 5 + 3);
    assert.equal(entryCost(ports({ portsAnnotation: '5060/UDP' })), 0);
    assert.equal(entryCost(ports({ portsAnnotation: 'all' })), 0);
  });

  it('counts only Services with more than 1,024 entries, and refuses the youngest', () => {
    const budget = entryBudget(3000);
    for (let index = 0; index < 10; index++)
      assert.deepEqual([...budget.replaceClaim(`a/small-${index}`, '1', listed(1, 1023))], []);
    assert.equal(budget.costOf('a/small-0'), 0);
    budget.replaceClaim('a/old', '2', listed(10, 199));
    assert.deepEqual([...budget.replaceClaim('a/young', '3', listed(5, 209))], ['a/young']);
    assert.deepEqual(budget.refusal('a/young'), {
      serviceKey: 'a/young',
      reason: 'Budget',
      field: 'spec.ports',
      message:
        '1050 entries (listed ports times addresses and their source ranges) are more than older Services leave of the 3000 for namespace a on a node; list fewer ports, addresses or source ranges, or use port ranges',
    });
    assert.deepEqual([...budget.replaceClaim('a/old', '2', listed(10, 101))], ['a/young']);
    assert.equal(budget.refusal('a/young'), undefined);
  });
});

describe('namespace-budget: Services of one namespace', () => {
  const build = () => {
    const budget = rangeBudget({ max: 10, unit: 'ranges' });
    const refused = (...keys: string[]) => keys.filter((key) => budget.refusal(key) !== undefined);
    return { budget, refused };
  };

  it('refuses the youngest Services that do not fit, and names cost and budget', () => {
    const { budget, refused } = build();
    assert.deepEqual([...budget.replaceClaim('a/young', '2026-03-01', ranges(4))], []);
    assert.deepEqual([...budget.replaceClaim('a/old', '2026-01-01', ranges(5))], []);
    assert.deepEqual([...budget.replaceClaim('a/middle', '2026-02-01', ranges(3))], ['a/young']);
    assert.deepEqual(budget.refusal('a/young'), {
      serviceKey: 'a/young',
      reason: 'Budget',
      field: 'metadata.annotations["portwide.dev/ports"]',
      message:
        '4 ranges and slices are more than older Services leave of the 10 for namespace a on a node; list fewer ranges or source ranges, or use all ports',
    });
    // A younger one that fits is served.
    budget.replaceClaim('a/youngest', '2026-04-01', ranges(2));
    assert.deepEqual(refused('a/old', 'a/middle', 'a/young', 'a/youngest'), ['a/young']);
  });

  it('names the number of ports in a mode that writes ports one by one', () => {
    const budget = rangeBudget({ max: 10, unit: 'ports' });
    budget.replaceClaim('a/x', '', ports({ portsAnnotation: '1-11/UDP' }));
    assert.match(
      budget.refusal('a/x')?.message ?? '',
      /^11 ports of ranges are more than .* of the 10 /,
    );
  });

  it('serves a refused Service once there is room', () => {
    const { budget, refused } = build();
    for (const [key, time] of [
      ['a/one', '1'],
      ['a/two', '2'],
      ['a/three', '3'],
    ] as const)
      budget.replaceClaim(key, time, ranges(5));
    assert.deepEqual(refused('a/one', 'a/two', 'a/three'), ['a/three']);
    assert.deepEqual([...budget.replaceClaim('a/one', '1', ranges(1))], []);
    assert.deepEqual([...budget.replaceClaim('a/two', '2', [])], ['a/three']);
    assert.deepEqual(refused('a/one', 'a/two', 'a/three'), []);
  });

  it('counts each namespace on its own, and Services of the same age by name', () => {
    const { budget, refused } = build();
    for (const key of ['a/x', 'a/w', 'b/x', 'ab/x']) budget.replaceClaim(key, '', ranges(6));
    assert.deepEqual(refused('a/x', 'a/w', 'b/x', 'ab/x'), ['a/x']);
    // A refused Service takes nothing.
    assert.deepEqual(
      ['a/w', 'a/x', 'a/none'].map((key) => budget.costOf(key)),
      [6, 0, 0],
    );
  });

  it('refuses a younger served Service when an older one grows, whatever came first', () => {
    const { budget, refused } = build();
    budget.replaceClaim('a/old', '1', ranges(3));
    budget.replaceClaim('a/young', '2', ranges(7));
    assert.deepEqual(refused('a/old', 'a/young'), []);
    assert.deepEqual([...budget.replaceClaim('a/old', '1', ranges(4))], ['a/young']);
    const restarted = build();
    restarted.budget.replaceClaim('a/young', '2', ranges(7));
    restarted.budget.replaceClaim('a/old', '1', ranges(4));
    assert.deepEqual(refused('a/old', 'a/young'), restarted.refused('a/old', 'a/young'));
  });

  it('refuses a Service that alone exceeds the budget', () => {
    const { budget } = build();
    assert.deepEqual([...budget.replaceClaim('a/x', '', ranges(11))], ['a/x']);
    assert.deepEqual([...budget.replaceClaim('a/x', '', ports({}))], ['a/x']);
    assert.equal(budget.refusal('a/x'), undefined);
  });
});
