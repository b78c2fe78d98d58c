import assert from 'node:assert/strict';
import fc from 'fast-check';
import { addressBytes } from '../../netlink/core/address.ts';
import { EEXIST, EOPNOTSUPP, NetlinkError } from '../../netlink/core/error.ts';
import { type NftOperation, NftRefusedError } from '../../netlink/nftables/tables.ts';
import { setFields } from '../../nft/declaration.ts';
import { FakeTables } from '../../nft/fake-tables.ts';
import { portKey } from '../../nft/keys.ts';
import { NftBackend, type NftBackendOptions, RefusedElementError } from '../../nftables/backend.ts';
import { endpointData, rangeKeys, slotKey } from '../../nftables/keys.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { Route, RouteMatch } from '../../services/route.ts';
import { route, upsertWithPods } from '../fixtures.ts';
import type { ClusterChange } from '../iptables/generated.ts';
import { textsIn } from './elements.ts';
import { change } from './generated.ts';
import { modeOptions } from './options.ts';

const [A, B, C] = ['10.244.0.1', '10.244.0.2', '10.244.0.3'] as const;
const VIP = '10.96.0.10';

/** Records warnings: the message, then the fields as `name: value`, errors by their message. */
function recordWarnings() {
  const warnings: string[][] = [];
  const onWarning: NftBackendOptions['onWarning'] = (message, fields = {}) => {
    const texts = Object.entries(fields).map(
      ([name, value]) => `${name}: ${value instanceof Error ? value.message : String(value)}`,
    );
    warnings.push([message, ...texts]);
  };
  return { warnings, onWarning };
}

function start(fake: FakeTables, routes: readonly Route[] = []) {
  const { warnings, onWarning } = recordWarnings();
  const options = { ...modeOptions({ nodePortSelection: ['all'] }), onWarning };
  const backend = new NftBackend(fake.tables, options);
  backend.update(routes, []);
  return { backend, warnings };
}

/** A backend that has written these Routes. */
async function appliedBackend(fake: FakeTables, routes: readonly Route[]): Promise<NftBackend> {
  const { backend } = start(fake, routes);
  await backend.apply(true);
  fake.log = [];
  return backend;
}

/** Declares a set of the agent with another type. */
const OTHER_VERSION: NftOperation = {
  action: 'declare',
  declarations: [{ kind: 'set', name: 'service-ports', key: [setFields('IPv4').port] }],
};

/** An affinity entry: the client uses this pod at this VIP and port. */
const affinityEntry = (pod: string, client = '192.0.2.1', vip = VIP) => ({
  key: Buffer.concat([addressBytes(client), addressBytes(vip), portKey('TCP', 80)]),
  data: endpointData({ address: pod, port: 8080 }),
});

describe('backend: mode nftables', () => {
  it('writes endpoints, then chains, then dispatch elements in a full sync', async () => {
    const fake = new FakeTables();
    const { backend } = start(fake, [route({}, [A])]);
    assert.deepEqual(await backend.apply(true), { written: 4 });
    assert.deepEqual(fake.log, [
      'declare',
      'add endpoints 1, add hairpin-connections 1',
      'rules of all',
      'add service-ports 1, add cluster-ips 1',
    ]);
  });

  it('deletes dispatch elements first, lookup elements next, unknown objects last in a full sync', async () => {
    const fake = new FakeTables();
    await appliedBackend(fake, [
      route({}, [A]),
      route({ id: 'gone', clusterIP: '10.96.0.11' }, [A, B]),
    ]);
    fake.chains.set('foreign', 1);
    fake.sets.set('foreign', new Map());
    fake.sets.set('__set0', new Map());
    const { backend, warnings } = start(fake, [route({}, [A])]);
    assert.deepEqual(await backend.apply(true), { written: 5 });
    assert.deepEqual(fake.log, [
      'declare',
      'rules of internal-port-1',
      'rules of all',
      'delete cluster-ips 1, delete service-ports 1',
      'delete endpoints 2, delete hairpin-connections 1',
      'remove foreign foreign internal-port-2',
    ]);
    assert.deepEqual(warnings, []);
  });

  it('changes existing static chains and dispatch elements in one transaction', async () => {
    const fake = new FakeTables();
    await appliedBackend(fake, [route({}, [A])]);
    fake.sets.get('service-ports')?.clear();
    fake.chains.delete('internal-port-1');
    const { backend } = start(fake, [route({}, [A])]);
    await backend.apply(true);
    assert.deepEqual(fake.log, [
      'declare',
      'rules of internal-port-1',
      'rules of all, add service-ports 1',
    ]);
  });

  it('writes new chains, then the change in one transaction, then deletes unused elements', async () => {
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, [route({}, [A, B])]);
    backend.update([route({}, [C])], []);
    assert.deepEqual(await backend.apply(false), { written: 8 });
    assert.deepEqual(fake.log, [
      'rules of internal-port-1',
      'delete service-ports 1, delete endpoints 1, add service-ports 1, add endpoints 1, add hairpin-connections 1',
      'delete endpoints 1, delete hairpin-connections 2',
    ]);
    fake.log = [];
    assert.deepEqual(await backend.apply(false), { written: 0 });
    assert.deepEqual(fake.log, []);
  });

  it('declares an affinity map before the first rule that refers to it', async () => {
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, [route({}, [A])]);
    const sticky = { affinitySeconds: 60 };
    const allPorts = (pods: readonly string[]) =>
      route({ id: 'all-ports', clusterIP: '10.96.0.11', match: { kind: 'all' }, ...sticky }, pods);
    backend.update([route(sticky, [A])], []);
    await backend.apply(false);
    assert.ok(!fake.log.includes('declare'), 'the affinity map of ordinary Services always exists');
    backend.update([allPorts([A])], []);
    await backend.apply(false);
    assert.ok(fake.sets.has('affinity-ips-0'));
    fake.log = [];
    backend.update([allPorts([A, B])], []);
    await backend.apply(false);
    assert.ok(!fake.log.includes('declare'));
    backend.update([], ['all-ports']);
    await backend.apply(true);
    assert.ok(!fake.sets.has('affinity-ips-0'), 'an unused affinity map is removed');
    backend.update([allPorts([A])], []);
    await backend.apply(false);
    assert.ok(fake.sets.has('affinity-ips-0'));
  });

  it('deletes affinity entries of a removed endpoint in the same transaction, and later additions after it', async () => {
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, [route({ affinitySeconds: 60 }, [A, B])]);
    fake.putFromPacket(
      'affinity',
      affinityEntry(A),
      affinityEntry(B, '192.0.2.2'),
      affinityEntry(A, '192.0.2.3', '10.96.0.99'),
    );
    const late = affinityEntry(A, '192.0.2.4');
    fake.afterCommit = () => {
      fake.afterCommit = () => {};
      fake.putFromPacket('affinity', late);
    };
    backend.update([route({ affinitySeconds: 60 }, [B])], []);
    await backend.apply(false);
    const [, first = '', ...rest] = fake.log;
    assert.match(first, /^delete service-ports 1, delete endpoints 1, .*, delete affinity 1$/);
    assert.deepEqual(rest, [
      'delete affinity 1',
      'delete endpoints 1, delete hairpin-connections 1',
    ]);
    assert.deepEqual(
      [...(fake.sets.get('affinity')?.values() ?? [])].map(({ key }) => key[3]),
      [2, 3],
    );
  });

  it('commits the change when an affinity entry expires before its deletion', async () => {
    for (const failures of [1, 2]) {
      const fake = new FakeTables();
      const backend = await appliedBackend(fake, [route({ affinitySeconds: 60 }, [A, B])]);
      fake.putFromPacket('affinity', affinityEntry(A));
      let left = failures;
      fake.beforeCommit = (changes) => {
        if (!changes.some(({ set, elements }) => set === 'affinity' && elements.length > 0)) return;
        fake.sets.get('affinity')?.clear();
        left -= 1;
        if (left > 0) fake.putFromPacket('affinity', affinityEntry(A, '192.0.2.9'));
      };
      backend.update([route({ affinitySeconds: 60 }, [B])], []);
      await backend.apply(false);
      assert.deepEqual(textsIn(fake, 'service-ports'), [
        `${VIP} . tcp . 80 : goto internal-port-1-affinity`,
      ]);
      assert.equal(fake.sets.get('affinity')?.size, 0);
    }
  });

  it('deletes all affinity entries of a removed endpoint while other entries expire', async () => {
    for (const full of [false, true]) {
      const fake = new FakeTables();
      const backend = await appliedBackend(fake, [route({ affinitySeconds: 60 }, [A, B])]);
      const clients = Array.from({ length: 60 }, (_, index) => `192.0.2.${index}`);
      fake.putFromPacket(
        'affinity',
        ...clients.map((client) => affinityEntry(A, client)),
        affinityEntry(B, '192.0.2.99'),
      );
      // One entry of each batch expires.
      fake.beforeCommit = (changes) => {
        const { elements = [] } = changes.find(({ set }) => set === 'affinity') ?? {};
        const [element] = elements;
        if (element === undefined || elements.length < 2) return;
        fake.sets.get('affinity')?.delete(element.key.toString('latin1'));
      };
      backend.update([route({ affinitySeconds: 60 }, [B])], []);
      await backend.apply(full);
      assert.deepEqual(
        [...(fake.sets.get('affinity')?.values() ?? [])],
        [affinityEntry(B, '192.0.2.99')],
      );
    }
  });

  it('lets an affinity entry expire that is about to, and deletes it when the client renews it', async () => {
    const [expiring, renewed] = [affinityEntry(A), affinityEntry(A, '192.0.2.2')];
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, [route({ affinitySeconds: 60 }, [A, B])]);
    fake.putFromPacket('affinity', expiring, renewed);
    fake.expiresIn = () => 5;
    let dumps = 0;
    fake.onDump = (set) => {
      if (set === 'affinity' && ++dumps === 2) {
        fake.sets.get('affinity')?.delete(expiring.key.toString('latin1'));
        fake.expiresIn = () => 60_000;
      }
      return false;
    };
    backend.update([route({ affinitySeconds: 60 }, [B])], []);
    await backend.apply(false);
    const deletions = fake.log.filter((line) => /delete affinity/.test(line));
    assert.deepEqual(deletions, ['delete affinity 1']);
    assert.equal(fake.sets.get('affinity')?.size, 0);
  });

  it('deletes affinity entries of unknown endpoints and VIPs in a full sync', async () => {
    const fake = new FakeTables();
    await appliedBackend(fake, [route({ affinitySeconds: 60 }, [A, B])]);
    fake.putFromPacket(
      'affinity',
      affinityEntry(A),
      affinityEntry(C, '192.0.2.2'),
      affinityEntry(A, '192.0.2.3', '10.96.0.99'),
    );
    const { backend } = start(fake, [route({ affinitySeconds: 60 }, [A, B])]);
    assert.deepEqual(await backend.apply(true), { written: 2 });
    assert.deepEqual([...(fake.sets.get('affinity')?.values() ?? [])], [affinityEntry(A)]);
  });

  it('discards the elements of an interrupted dump', async () => {
    const fake = new FakeTables();
    await appliedBackend(fake, [route({}, [A])]);
    const { backend } = start(fake, [route({}, [A])]);
    fake.onDump = (set) => {
      fake.onDump = (other) => other !== set && fake.onDump === undefined;
      fake.sets.get(set)?.clear();
      return true;
    };
    await backend.apply(true);
    assert.deepEqual(textsIn(fake, 'endpoints'), [`${VIP} . tcp . 80 . 0 : ${A} . 8080`]);
  });

  it('flushes unknown chains and deletes stale dispatch elements with the change if the kernel refuses their paths', async () => {
    const fake = new FakeTables();
    await appliedBackend(fake, [route({ clusterIP: '10.96.0.11' }, [A, B])]);
    fake.chains.set('foreign', 1);
    const { tables } = fake;
    const { transact } = tables;
    let refusals = 1;
    tables.transact = async (operations) => {
      const changes = operations.some((each) => 'set' in each && each.set === 'service-ports');
      if (changes && refusals-- > 0)
        throw new NftRefusedError(new NetlinkError('transaction', EOPNOTSUPP));
      await transact(operations);
    };
    const backend = new NftBackend(tables, { ...modeOptions(), onWarning: () => {} });
    backend.update([route({}, [A])], []);
    await backend.apply(true);
    assert.deepEqual(fake.log.slice(-3), [
      'rules of all, delete cluster-ips 1, delete service-ports 1, add service-ports 1, add cluster-ips 1',
      'delete endpoints 2, delete hairpin-connections 1',
      'remove foreign internal-port-2',
    ]);
  });

  it('deletes a stale range in the same transaction that adds an overlapping one', async () => {
    const fake = new FakeTables();
    const only = (sourceRanges: readonly string[]) =>
      route({ clusterIP: undefined, loadBalancerIPs: ['203.0.113.1'], sourceRanges }, [A]);
    await appliedBackend(fake, [only(['10.0.0.0/8', '172.16.0.0/12'])]);
    const { backend } = start(fake, [only(['10.1.0.0/16'])]);
    await backend.apply(true);
    assert.deepEqual(fake.log.slice(2), [
      'delete allowed-port-sources 1, add allowed-port-sources 1',
      'rules of external-port-1,firewall-port-external-port-1',
      'rules of all',
      'delete allowed-port-sources 1',
    ]);
    const match: RouteMatch = { kind: 'ranges', ranges: [{ protocol: 'TCP', from: 1, to: 9 }] };
    backend.update([route({ id: 'ranges', match }, [A])], []);
    await backend.apply(false);
    const [other] = rangeKeys(slotKey(addressBytes(VIP), 1), [
      { protocol: 'TCP', from: 50, to: 150 },
    ]);
    assert.ok(other);
    fake.putFromPacket('vip-ranges-10', other);
    fake.log = [];
    const ranges = [{ protocol: 'TCP' as const, from: 100, to: 200 }];
    backend.update([route({ id: 'ranges', match: { kind: 'ranges', ranges } }, [A])], []);
    await backend.apply(true);
    assert.ok(
      fake.log.includes('delete vip-ranges-10 1, add vip-ranges-10 1'),
      fake.log.join('\n'),
    );
  });

  it('writes and deletes many slices of owned ports in transactions of a bounded size', async () => {
    const fake = new FakeTables();
    const COUNT = 3000;
    const range = { protocol: 'UDP' as const, from: 1000, to: 999 + COUNT };
    const media = route({
      match: { kind: 'ranges', ranges: [range] },
      owned: {
        ranges: [range],
        portsPerPod: 1,
        owners: Array.from({ length: COUNT }, (_, ordinal) => ({
          ordinal,
          address: `10.244.${ordinal >> 8}.${ordinal & 255}`,
          serves: true,
          node: 'this' as const,
        })),
        udpVip: VIP,
        priority: 'media',
        taken: new Map(),
      },
    });
    const sizes = () =>
      fake.log.map((line) =>
        [...line.matchAll(/(?:add|delete) \S+ (\d+)/g)].reduce((sum, [, n]) => sum + Number(n), 0),
      );
    const { backend } = start(fake, [media]);
    await backend.apply(true);
    assert.ok(sizes().reduce((sum, size) => sum + size, 0) > 3 * COUNT);
    assert.ok(Math.max(...sizes()) <= 2001, `${sizes()}`);
    for (const isFull of [false, true]) {
      backend.update([media], []);
      await backend.apply(true);
      fake.log = [];
      backend.update([], [media.id]);
      await backend.apply(isFull);
      assert.ok(sizes().reduce((sum, size) => sum + size, 0) > 3 * COUNT);
      assert.ok(Math.max(...sizes()) <= 2001, `${sizes()}`);
      const deletions = fake.log.filter((line) => /delete (owned-addresses|udp-owner)/.test(line));
      const lastAddresses = deletions.findLastIndex((line) => line.includes('owned-addresses'));
      const firstSlices = deletions.findIndex((line) => line.includes('udp-owner'));
      assert.ok(
        firstSlices >= 0 && lastAddresses <= firstSlices,
        `packets find no slices any longer: ${deletions}`,
      );
    }
  });

  it('warns when unknown objects cannot be removed, and counts the failure', async () => {
    const fake = new FakeTables();
    const { tables } = fake;
    tables.remove = async () => {
      throw new NftRefusedError(new NetlinkError('delete', EEXIST));
    };
    const { warnings, onWarning } = recordWarnings();
    const backend = new NftBackend(tables, { ...modeOptions(), onWarning });
    backend.update([route({}, [A])], []);
    await backend.apply(true);
    assert.equal(backend.stats().cleanupFailures, 1);
    assert.deepEqual(warnings, [
      [
        'cannot remove unknown objects from the nftables table',
        'table: portwide',
        'err: nf_tables transaction: EEXIST',
      ],
    ]);
  });

  it('reads the counters of rejected localhost packets, and keeps the last numbers when it cannot', async () => {
    const fake = new FakeTables();
    const { tables } = fake;
    const { counters } = tables;
    const { warnings, onWarning } = recordWarnings();
    const options = { ...modeOptions({ rejectsOnLocalhost: true }), onWarning };
    const backend = new NftBackend(tables, options);
    const rejected = async () => [...(await backend.localhostRejections())];
    assert.deepEqual(await rejected(), []);
    await backend.apply(true);
    fake.counters.set('localhost-nodeport-rejected-udp', 7n);
    const expected = [
      ['UDP', 7],
      ['SCTP', 0],
    ];
    assert.deepEqual(await rejected(), expected);
    await backend.apply(true);
    assert.deepEqual(await rejected(), expected, 'a sync does not reset counters');
    tables.counters = async () => {
      throw new NetlinkError('counters', EEXIST);
    };
    assert.deepEqual(await rejected(), expected);
    assert.deepEqual(warnings, [
      ['cannot read counters of packets rejected on localhost', 'err: counters: EEXIST'],
    ]);
    await backend.close();
    assert.deepEqual(await rejected(), expected);
    assert.equal(warnings.length, 1);
    tables.counters = counters;
    const { backend: without } = start(fake);
    await without.apply(true);
    assert.deepEqual([...(await without.localhostRejections())], []);
    assert.deepEqual([...fake.counters], [], 'an agent without localhost counters removes them');
  });

  it('replaces an incompatible table in one transaction, with a warning', async () => {
    const fake = new FakeTables();
    await fake.tables.transact([OTHER_VERSION]);
    fake.log = [];
    const { backend, warnings } = start(fake, [route({ affinitySeconds: 5 }, [A])]);
    await backend.apply(true);
    const elements = [
      'service-ports',
      'affinity-update-ports',
      'endpoints',
      'hairpin-connections',
      'cluster-ips',
    ];
    assert.deepEqual(fake.log, [
      `replace table, rules of all, ${elements.map((map) => `add ${map} 1`).join(', ')}`,
    ]);
    assert.deepEqual(warnings, [
      [
        'replacing an nftables table of an incompatible version',
        'table: portwide',
        'reason: set service-ports: EEXIST',
        'effect: connections continue; session affinity is reset; some UDP packets to ports owned by pods may be lost',
      ],
    ]);
    assert.ok((fake.chains.get('update-affinity-5') ?? 0) > 0);
  });

  it('throws the error of the kernel when there is no table to replace', async () => {
    const fake = new FakeTables();
    const { backend } = start(fake);
    await fake.tables.transact([OTHER_VERSION]);
    const tables = fake.tables;
    tables.sets = async () => undefined;
    const own = new NftBackend(tables, { ...modeOptions(), onWarning: () => {} });
    await assert.rejects(own.apply(true), /set service-ports: EEXIST/);
    assert.ok(backend);
  });

  it('names the Service of a refused element', async () => {
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, []);
    const foreign = { key: Buffer.concat([addressBytes(VIP), portKey('TCP', 80)]) };
    fake.putFromPacket('service-ports', { ...foreign, data: { kind: 'drop' } });
    backend.update([route({}, [A])], []);
    await assert.rejects(backend.apply(false), (error: unknown) => {
      assert.ok(error instanceof RefusedElementError);
      assert.equal(error.service, 'default/web');
      assert.match(error.message, /^default\/web: .*service-ports/);
      return true;
    });
    assert.ok((await backend.apply(true)).written > 0);
    assert.deepEqual(textsIn(fake, 'service-ports'), [`${VIP} . tcp . 80 : goto internal-port-1`]);
  });

  it('counts rules, chains and maps that a full sync repairs, and nothing that it finds unchanged', async () => {
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, [route({}, [A])]);
    assert.deepEqual(await backend.apply(true), { written: 0 });
    const flushed = fake.rules.get('services') ?? [];
    assert.ok(flushed.length > 0);
    fake.rules.set('services', []);
    assert.deepEqual(await backend.apply(true), { written: flushed.length });
    fake.chains.set('foreign', 0);
    fake.sets.set('foreign', new Map());
    assert.deepEqual(await backend.apply(true), { written: 2 });
    assert.deepEqual(await backend.apply(true), { written: 0 });
    backend.update([], ['default/web/IPv4']);
    await backend.apply(false);
    assert.deepEqual(await backend.apply(true), { written: 0 }, 'unused chains are no repair');
  });

  it('does not count objects that it cannot remove as repaired', async () => {
    const fake = new FakeTables();
    const { tables } = fake;
    const { onWarning } = recordWarnings();
    const backend = new NftBackend(tables, { ...modeOptions(), onWarning });
    await backend.apply(true);
    fake.sets.set('foreign', new Map());
    tables.remove = async () => {
      throw new NftRefusedError(new NetlinkError('delete', EEXIST));
    };
    assert.deepEqual(await backend.apply(true), { written: 0 });
  });

  it('reports the first external change until the next full sync', async () => {
    const fake = new FakeTables();
    const backend = await appliedBackend(fake, []);
    let callbacks = 0;
    backend.onDrift(() => {
      callbacks += 1;
    });
    assert.equal(await backend.findDrift(), undefined);
    backend.onExternalChange('first change');
    backend.onExternalChange('other');
    assert.equal(callbacks, 1);
    await backend.apply(false);
    assert.equal(await backend.findDrift(), 'first change');
    fake.onDump = (set) => {
      if (set === 'service-ports') backend.onExternalChange('during a full sync');
      return false;
    };
    await backend.apply(true);
    assert.equal(await backend.findDrift(), 'during a full sync');
    assert.equal(callbacks, 2);
  });

  it('writes updates that arrive during a full sync with the next sync', async () => {
    const fake = new FakeTables();
    const { backend } = start(fake, [route({}, [A])]);
    fake.beforeCommit = () => {
      fake.beforeCommit = () => {};
      backend.update([route({ id: 'other', clusterIP: '10.96.0.11' }, [B])], [route().id]);
    };
    await backend.apply(true);
    assert.deepEqual(textsIn(fake, 'service-ports'), [`${VIP} . tcp . 80 : goto internal-port-1`]);
    await backend.apply(false);
    assert.deepEqual(textsIn(fake, 'service-ports'), [
      '10.96.0.11 . tcp . 80 : goto internal-port-1',
    ]);
    assert.deepEqual(textsIn(fake, 'endpoints'), [`10.96.0.11 . tcp . 80 . 0 : ${B} . 8080`]);
  });
});

describe('backend: a packet in flight', () => {
  const FIRST = { '': 0, '-local': 2 ** 20 };

  /** The endpoint lists that dispatch elements refer to, by key (without the index) and first index. */
  function endpointLists(
    fake: FakeTables,
  ): Map<string, { count: number; first: number; map: string }> {
    const found = new Map<string, { count: number; first: number; map: string }>();
    for (const [map, endpoints] of [
      ['service-ports', 'endpoints'],
      ['service-ips', 'endpoint-ips'],
      ['node-ports', 'node-port-endpoints'],
    ] as const) {
      for (const text of textsIn(fake, map)) {
        const [key = '', target = ''] = text.split(' : ');
        for (const [, count, local] of target.matchAll(/-(\d+)(-local)?(?=-|$)/g)) {
          const first = FIRST[(local ?? '') as keyof typeof FIRST];
          found.set(`${key} ${first}`, { count: Number(count), first, map: endpoints });
        }
      }
    }
    return found;
  }

  function indexes(fake: FakeTables, map: string, key: string): Set<number> {
    const texts = textsIn(fake, map as 'endpoints').filter((text) => text.startsWith(`${key} . `));
    return new Set(texts.map((text) => Number(text.slice(key.length + 3).split(' : ')[0])));
  }

  it('finds an endpoint for every index, before and after each transaction', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(change, { minLength: 1, maxLength: 15 }),
        fc.nat(14),
        async (steps, restart) => {
          const fake = new FakeTables();
          let last = new Map<string, { count: number; first: number; map: string }>();
          fake.afterCommit = () => {
            const now = endpointLists(fake);
            for (const [id, { count, first, map }] of now) {
              const key = id.slice(0, id.lastIndexOf(' '));
              const there = indexes(fake, map, key);
              for (let index = 0; index < count; index++) {
                assert.ok(there.has(first + index), `${map} ${key} has no ${first + index}`);
              }
            }
            // A packet that was dispatched before this transaction falls back to the first index.
            for (const [id, { first, map }] of last) {
              if (!now.has(id)) continue;
              const key = id.slice(0, id.lastIndexOf(' '));
              assert.ok(indexes(fake, map, key).has(first), `${map} ${key} has not even ${first}`);
            }
            last = now;
          };
          const table = new RouteTable({
            nodeName: 'node-a',
            allPortsEnabled: true,
            onChange: () => {},
          });
          let { backend } = start(fake);
          await backend.apply(true);
          for (const [index, step] of steps.entries()) {
            feed(table, step);
            const { upserts, removals } = table.takeChanges().routes;
            const isOurs = ({ family }: Route) => family === 'IPv4';
            backend.update(
              upserts.filter(isOurs),
              removals.filter(isOurs).map(({ id }) => id),
            );
            if (index === restart) {
              backend = start(fake, [...table.routes()].filter(isOurs)).backend;
              await backend.apply(true);
            } else await backend.apply(false);
          }
        },
      ),
      { seed: 5, numRuns: 200 },
    );
  });

  it('finds the old or the new dispatch element when a Service changes its ports', async () => {
    const tcp = (from: number, to: number) => ({ protocol: 'TCP', from, to }) as const;
    const matches: readonly RouteMatch[] = [
      { kind: 'port', protocol: 'TCP', port: 80 },
      { kind: 'ranges', ranges: [tcp(80, 80), tcp(8000, 8100)] },
      { kind: 'ranges', ranges: [tcp(79, 81)] },
      { kind: 'all' },
    ];
    // Patterns of elements for port 80 in each dispatch map, by precedence, and the set of allowed sources.
    const [PORT, VIP_ALONE] = [/^10\.96\.0\.10 \. tcp \. 80 /, /^10\.96\.0\.10 /];
    const DISPATCH = [
      ['service-ports', 'allowed-port-sources', PORT],
      ['range-services', 'allowed-vip-sources', /^10\.96\.0\.10 \. [1-3] /],
      ['service-ips', 'allowed-vip-sources', VIP_ALONE],
    ] as const;
    const hasRange = (fake: FakeTables): boolean => {
      const ranges = textsIn(fake, 'vip-ranges-10').map((text) =>
        / tcp \. (\d+)-?(\d*)/.exec(text),
      );
      const has80 = ranges.some((found) => {
        const [, first = '', last] = found ?? [];
        return Number(first) <= 80 && Number(last || first) >= 80;
      });
      return has80 && textsIn(fake, 'range-vips').length > 0;
    };
    const isServed = (fake: FakeTables) => {
      for (const [dispatch, allowed, pattern] of DISPATCH) {
        if (dispatch === 'range-services' && !hasRange(fake)) continue;
        const element = textsIn(fake, dispatch).find((text) => pattern.test(text));
        if (element === undefined) continue;
        return (
          !element.includes('goto firewall-') ||
          textsIn(fake, allowed).some((text) => pattern.test(text))
        );
      }
      return false;
    };
    for (const sourceRanges of [undefined, ['0.0.0.0/1']]) {
      for (const [before, after] of matches.flatMap((a) => matches.map((b) => [a, b] as const))) {
        const of = (match: RouteMatch) => {
          const vips =
            sourceRanges === undefined ? {} : { clusterIP: undefined, loadBalancerIPs: [VIP] };
          return route({ id: match.kind, match, ...vips, sourceRanges }, [A, B]);
        };
        const fake = new FakeTables();
        const { backend } = start(fake, [of(before)]);
        await backend.apply(true);
        assert.ok(isServed(fake));
        fake.midCommit = () => {
          assert.ok(isServed(fake), `${JSON.stringify(before)} to ${JSON.stringify(after)}`);
        };
        backend.update([of(after)], before.kind === after.kind ? [] : [before.kind]);
        await backend.apply(false);
      }
    }
  });
});

function feed(table: RouteTable, step: ClusterChange): void {
  if ('upsert' in step) upsertWithPods(table, step.upsert);
  else if ('remove' in step) table.remove(step.remove.kind, step.remove.key);
  else table.setNodeAddresses(new Set(step.nodeAddresses));
}
