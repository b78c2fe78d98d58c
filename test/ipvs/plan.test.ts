import assert from 'node:assert/strict';
import fc from 'fast-check';
import { familyOf } from '../../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import { restoreInput } from '../../iptables/restore.ts';
import { TABLES } from '../../iptables/ruleset.ts';
import { type IpvsItem, itemKey } from '../../ipvs/items.ts';
import { MarkAllocator } from '../../ipvs/marks.ts';
import { IpvsPlan } from '../../ipvs/plan.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { arbitraryChange, type ClusterChange } from '../iptables/generated.ts';
import { plan, ruleOptions } from './simulated-node.ts';

type Plan = ReturnType<typeof plan>;

function newTable(): RouteTable {
  return new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
}

function feed(table: RouteTable, step: ClusterChange): void {
  if ('upsert' in step) table.upsert(step.upsert);
  else if ('remove' in step) table.remove(step.remove.kind, step.remove.key);
  else table.setNodeAddresses(new Set(step.nodeAddresses));
}

function take(into: Plan, table: RouteTable, family: IpFamily, addresses: readonly string[]): void {
  const own = addresses.filter((address) => familyOf(address) === family);
  into.setNodeAddresses({ addresses: own, primary: [] });
  const { routes } = table.takeChanges();
  const ofFamily = <T extends { family: IpFamily }>(list: readonly T[]) =>
    list.filter((each) => each.family === family);
  into.update(
    ofFamily(routes.upserts),
    ofFamily(routes.removals).map(({ id }) => id),
  );
}

/** Items sorted by key, independent of the order of Routes. */
function itemsOf({ desired }: Plan): readonly IpvsItem[] {
  return [...desired.items()].sort((a, b) => (itemKey(a) < itemKey(b) ? -1 : 1));
}

/** Rules that a first sync writes, as input of iptables-restore. */
function rulesOf({ ruleset }: Plan): string {
  const nothing = { chains: new Map<string, string>(), foreign: new Set<string>() };
  return TABLES.map((table) => restoreInput(ruleset.diff(table, nothing))).join('\n');
}

describe('plan: desired state of the ipvs mode', () => {
  for (const family of IP_FAMILIES) {
    for (const allPorts of ['fwmark', 'iptables'] as const) {
      it(`computes the same items step by step and in one update (${family}, all ports by ${allPorts})`, async () => {
        const steps = fc.array(arbitraryChange, { minLength: 1, maxLength: 20 });
        await fc.assert(
          fc.asyncProperty(steps, async (each) => {
            const [table, freshTable] = [newTable(), newTable()];
            const [slow, fresh] = [plan({ family }, allPorts), plan({ family }, allPorts)];
            let addresses: readonly string[] = [];
            for (const step of each) {
              if ('nodeAddresses' in step) addresses = step.nodeAddresses;
              feed(table, step);
              feed(freshTable, step);
              take(slow, table, family, addresses);
            }
            take(fresh, freshTable, family, addresses);
            // VIPs that a Service has lost stay bound only while they have connections.
            await slow.drainingVips.checkConntrack(async () => new Set());
            slow.drainingVips.takeIdle(() => false);
            assert.deepEqual(itemsOf(slow), itemsOf(fresh));
            if (allPorts === 'iptables') assert.equal(rulesOf(slow), rulesOf(fresh));
          }),
          { seed: 42, numRuns: 150 },
        );
      });
    }
  }

  it('has the same rules for any Routes', () => {
    fc.assert(
      fc.property(fc.array(arbitraryChange, { maxLength: 20 }), (steps) => {
        const table = newTable();
        const full = plan({ family: 'IPv4' });
        for (const step of steps) feed(table, step);
        take(full, table, 'IPv4', ['192.0.2.7']);
        assert.equal(rulesOf(full), rulesOf(plan({ family: 'IPv4' })));
      }),
      { seed: 42, numRuns: 50 },
    );
  });

  it('serves a node port again when the VIP on its address is removed', () => {
    const NODE = '192.0.2.7';
    const ported = (id: string, pod: string, fields: Partial<Route>) =>
      route({ id, name: id, clusterIP: undefined, ...fields }, [pod]);
    const listed = (port: number) => ({ kind: 'port', protocol: 'TCP', port }) as const;
    // Each lists the other's node port on its VIP.
    const a = ported('default/a', '10.244.0.1', {
      match: listed(30_002),
      nodePort: 30_001,
      loadBalancerIPs: [NODE],
    });
    const b = ported('default/b', '10.244.0.2', {
      match: listed(30_001),
      nodePort: 30_002,
      loadBalancerIPs: [NODE],
    });
    const both = plan({ family: 'IPv4' });
    both.setNodeAddresses({ addresses: [NODE], primary: [] });
    const served = () =>
      [...both.desired.items()].flatMap((item) =>
        item.kind === 'destination' ? [itemKey(item)] : [],
      );
    both.update([a, b], []);
    assert.deepEqual(served().sort(), [
      'TCP 192.0.2.7:30001 > 10.244.0.2:8080',
      'TCP 192.0.2.7:30002 > 10.244.0.1:8080',
    ]);
    both.update([], ['default/b']);
    assert.deepEqual(served().sort(), [
      'TCP 192.0.2.7:30001 > 10.244.0.1:8080',
      'TCP 192.0.2.7:30002 > 10.244.0.1:8080',
    ]);
  });

  it('rejects a Service without a mark, warns once, and serves it when a mark is free', () => {
    const warnings: string[] = [];
    const markRange = { first: 0x1000, last: 0x1002 };
    const tiny = new IpvsPlan(
      {
        ...ruleOptions({ markRange }),
        nodePortSelection: ['all'],
        scheduler: 'rr',
        allPorts: 'fwmark',
        onWarning: (details, message) => warnings.push(JSON.stringify({ ...details, message })),
      },
      new MarkAllocator(markRange, [], []),
    );
    const wide = (name: string, clusterIP: string) =>
      route({ id: name, name, clusterIP, match: { kind: 'all' } }, ['10.244.0.1']);
    const marked = () =>
      [...tiny.desired.entriesOf('KUBE-ALL-PORTS')].map(({ ip, skbMark }) => [ip, skbMark]);
    tiny.update([wide('default/a', '10.96.0.1'), wide('default/b', '10.96.0.2')], []);
    assert.deepEqual(marked(), [
      ['10.96.0.1', 0x1002],
      ['10.96.0.2', 0x1001],
    ]);
    // Bound and rejected, so that no listener of the node answers.
    assert.deepEqual(
      [...tiny.desired.entriesOf('KUBE-IPVS-IPS')].map(({ ip }) => ip),
      ['10.96.0.1', '10.96.0.2'],
    );
    tiny.update([wide('default/b', '10.96.0.2')], []);
    assert.equal(tiny.waitingForMark, 1);
    assert.equal(warnings.length, 1);
    assert.match(warnings[0] ?? '', /default\/b.*--ipvs-fwmark-range.*no packet mark left/);
    tiny.update([], ['default/a']);
    assert.deepEqual(marked(), [['10.96.0.2', 0x1002]]);
    assert.equal(tiny.waitingForMark, 0);
  });
});

describe('plan: VIPs that are kept for the connections of a Service', () => {
  it('are released when it is deleted, without a look at other Services', () => {
    const own = plan({ family: 'IPv4' });
    const media = route({
      id: 'media',
      serviceKey: 'default/media',
      match: { kind: 'all' },
      clusterIP: '10.96.0.20',
      loadBalancerIPs: ['203.0.113.20'],
    });
    const others = [1, 2, 3].map((last) =>
      route({ id: `${last}`, serviceKey: `default/${last}`, clusterIP: `10.96.1.${last}` }),
    );
    own.update([media, ...others], []);
    own.update([{ ...media, loadBalancerIPs: [] }], []);
    assert.deepEqual(own.drainingVips.vips, ['203.0.113.20']);
    const looked: string[] = [];
    for (const other of others) {
      const { serviceKey } = other;
      Object.defineProperty(other, 'serviceKey', {
        get: () => {
          looked.push(serviceKey);
          return serviceKey;
        },
      });
    }
    own.update([], ['media']);
    assert.deepEqual([own.drainingVips.vips, looked], [[], []]);
  });
});
