import assert from 'node:assert/strict';
import fc from 'fast-check';
import { iptablesBackend } from '../../iptables/backend.ts';
import { serviceChains } from '../../iptables/chains.ts';
import type { Backend } from '../../proxier/backend.ts';
import type { Comparison } from '../../proxier/compared-object.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { feeder } from '../proxier/fed-backend.ts';
import { arbitraryChange } from './generated.ts';
import { options } from './options.ts';
import { type SimulatedTable, simulatedIptables } from './restore-simulator.ts';

function start(routes: readonly Route[] = []) {
  const simulated = simulatedIptables();
  const backend = iptablesBackend(simulated.iptables, {
    ...options(),
    nodePortSelection: ['all'],
    onWarning: assert.fail,
  });
  backend.update(routes, []);
  return { backend, tables: simulated.tables };
}

async function compare(backend: Backend, service?: string): Promise<Comparison> {
  const result = await backend.compare?.(service);
  assert.ok(result);
  return result;
}

async function differences(backend: Backend, service?: string) {
  const { objects } = await compare(backend, service);
  return objects.filter(({ state }) => state !== 'ok');
}

/** Rules by chain. */
function chainsOf(table: SimulatedTable): Map<string, string[]> {
  const chains = new Map<string, string[]>();
  for (const line of table.lines()) {
    const name = /^(?::|-A )(\S+)/.exec(line)?.[1] ?? '';
    if (line.startsWith(':')) chains.set(name, []);
    else chains.get(name)?.push(line);
  }
  return chains;
}

function setRules(table: SimulatedTable, chain: string, rules: readonly string[]): void {
  table.restore(['*nat', `:${chain} - [0:0]`, ...rules, 'COMMIT', ''].join('\n'));
}

type Expected = readonly [state: string, desired: string | null, actual: string | null][];
/** Changes one chain. @returns the differences; undefined: it does not apply to the chain. */
type Mutation = (chain: string, rules: string[]) => readonly [string[], Expected] | undefined;

const MUTATIONS: Readonly<Record<string, Mutation>> = {
  'deleted rule': (_, [first, ...rest]) =>
    first === undefined ? undefined : [rest, [['missing', first, null]]],
  'inserted rule': (chain, rules) => {
    const foreign = `-A ${chain} -s 192.0.2.99/32 -j RETURN`;
    return [[foreign, ...rules], [['unexpected', null, foreign]]];
  },
  'changed rule': (chain, [first, ...rest]) => {
    const foreign = `-A ${chain} -s 192.0.2.99/32 -j RETURN`;
    return first === undefined ? undefined : [[foreign, ...rest], [['changed', first, foreign]]];
  },
  'rules in another order': (_, [first, second, ...rest]) =>
    first === undefined || second === undefined || first === second
      ? undefined
      : [
          [second, first, ...rest],
          [
            ['changed', first, second],
            ['changed', second, first],
          ],
        ],
};

describe('compare: mode iptables', () => {
  it('finds nothing after any syncs, then exactly what another program changed', async function () {
    this.timeout(60_000);
    await fc.assert(
      fc.asyncProperty(
        fc.array(arbitraryChange, { minLength: 1, maxLength: 12 }),
        fc.constantFrom(...Object.keys(MUTATIONS)),
        fc.nat(1000),
        fc.boolean(),
        async (steps, mutation, pick, isFull) => {
          const { backend, tables } = start();
          assert.equal((await compare(backend)).compared, 0);
          await backend.apply(true);
          const feed = feeder(backend, 'IPv4');
          for (const step of steps) {
            feed(step);
            assert.deepEqual(await differences(backend), [], 'changes to write are no differences');
            await backend.apply(isFull);
          }
          assert.deepEqual(await differences(backend), []);
          const chains = [...tables].flatMap(([table, kernel]) =>
            [...chainsOf(kernel)].map(([chain, rules]) => ({ table, kernel, chain, rules })),
          );
          const own = chains.filter(
            ({ chain }) => chain.startsWith('KUBE-') && chain !== 'KUBE-FIREWALL',
          );
          const picked = own[pick % own.length];
          assert.ok(picked);
          const { table, kernel, chain, rules } = picked;
          const [edited, expected] = MUTATIONS[mutation]?.(chain, rules) ?? [];
          if (edited === undefined) return;
          setRules(kernel, chain, edited);
          const found = await differences(backend);
          assert.deepEqual(
            found.map(({ state, desired, actual }) => [state, desired, actual]),
            expected,
          );
          assert.deepEqual(new Set(found.map((object) => object.in)), new Set([table]));
          for (const object of found) {
            if (object.service === null) continue;
            const one = await differences(backend, object.service);
            if (mutation !== 'rules in another order') assert.deepEqual(one, [object]);
          }
        },
      ),
      { numRuns: 100 },
    );
  });

  const WEB = route({ nodePort: 30_080, externalIPs: ['192.0.2.10'] }, ['10.244.0.1']);
  const OTHER = route(
    { id: 'other', serviceKey: 'default/web-2', name: 'default/web-2', clusterIP: '10.96.0.26' },
    ['10.244.0.2'],
  );

  it('tells which syncs ran meanwhile', async () => {
    const { backend } = start([WEB]);
    await backend.apply(true);
    assert.deepEqual((await compare(backend)).syncs, { ended: 1, begun: 1 });
    const sync = backend.apply(true);
    const { syncs } = await compare(backend);
    await sync;
    assert.deepEqual(syncs, { ended: 1, begun: 2 });
  });

  it('lists chains, rules and the jumps to them for one Service', async () => {
    const { backend } = start([WEB, OTHER]);
    await backend.apply(true);
    const { objects, compared } = await compare(backend, 'default/web');
    assert.equal(compared, objects.length);
    const names = serviceChains('default/web', 'TCP');
    const sep = names.endpoint('10.244.0.1', 8080);
    const chains = objects.filter(({ type }) => type === 'chain').map(({ desired }) => desired);
    assert.deepEqual(
      new Set(chains),
      new Set(
        [names.cluster, names.external, sep, 'KUBE-SVC-VIP-A0', 'KUBE-SVC-NP-T940'].map(
          (name) => `:${name} - [0:0]`,
        ),
      ),
    );
    const jumps = objects.filter(({ type, service }) => type === 'rule' && service === null);
    assert.deepEqual(
      jumps.map(({ desired }) => desired?.replace(/ -m comment --comment "[^"]*"/, '')).sort(),
      [
        '-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080:30111 -j KUBE-SVC-NP-T940',
        '-A KUBE-SERVICES -d 0.0.0.10/0.0.0.15 -j KUBE-SVC-VIP-A',
        '-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS',
        '-A KUBE-SVC-VIP-A -d 0.0.0.0/0.0.0.240 -j KUBE-SVC-VIP-A0',
        '-A OUTPUT -j KUBE-SERVICES',
        '-A PREROUTING -j KUBE-SERVICES',
      ],
    );
    assert.ok(objects.every(({ service }) => service === 'default/web' || service === null));
  });

  it('finds missing jumps, jumps out of order and stale jumps in chains of other programs', async () => {
    const { backend, tables } = start([WEB]);
    await backend.apply(true);
    const filter = tables.get('filter');
    assert.ok(filter);
    const rules = chainsOf(filter).get('INPUT') ?? [];
    const [first = '', second = '', ...rest] = rules;
    setRules(filter, 'INPUT', ['-A INPUT -j ACCEPT', first, ...rest]);
    const found = async () =>
      (await differences(backend)).map(({ state, desired, actual, service }) => [
        state,
        desired,
        actual,
        service,
      ]);
    assert.deepEqual(await found(), [['missing', second, null, null]]);
    setRules(filter, 'INPUT', ['-A INPUT -j ACCEPT', second, first, ...rest]);
    assert.deepEqual(await found(), [
      ['changed', first, second, null],
      ['changed', second, first, null],
    ]);
    const stale = '-A INPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES';
    setRules(filter, 'INPUT', [...rules, stale]);
    assert.deepEqual(await found(), [['unexpected', null, stale, null]]);
  });

  it('reports the rules of a deleted and of an unknown chain', async () => {
    const { backend, tables } = start([WEB]);
    await backend.apply(true);
    const nat = tables.get('nat');
    assert.ok(nat);
    const { external } = serviceChains('default/web', 'TCP');
    const foreign = 'KUBE-SEP-AAAAAAAAAAAAAAAA';
    nat.restore(
      `*nat\n:${foreign} - [0:0]\n-A ${foreign} -j DNAT --to-destination 10.9.9.9\nCOMMIT\n`,
    );
    const rows = (await differences(backend)).map(({ state, type, actual, service }) => [
      state,
      type,
      actual,
      service,
    ]);
    assert.deepEqual(rows, [
      ['unexpected', 'chain', `:${foreign} - [0:0]`, null],
      ['unexpected', 'rule', `-A ${foreign} -j DNAT --to-destination 10.9.9.9`, null],
    ]);
    setRules(nat, external, []);
    const one = await differences(backend, 'default/web');
    assert.ok(one.length > 0);
    assert.ok(one.every(({ state, service }) => state === 'missing' && service === 'default/web'));
  });
});
