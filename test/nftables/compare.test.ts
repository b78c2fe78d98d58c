import assert from 'node:assert/strict';
import fc from 'fast-check';
import { encodeRule, immediate } from '../../netlink/nftables/rule.ts';
import { encodedRuleText } from '../../netlink/nftables/rule-text.ts';
import { FakeTables } from '../../nft/fake-tables.ts';
import { portField } from '../../nft/keys.ts';
import { NftBackend } from '../../nftables/backend.ts';
import { MAP_NAMES } from '../../nftables/maps.ts';
import type { ComparedObject } from '../../proxier/compared-object.ts';
import { MAX_COMPARED_OBJECTS } from '../../proxier/comparison.ts';
import { endpoint, route, service, slice } from '../fixtures.ts';
import { feeder } from '../proxier/fed-backend.ts';
import { change } from './generated.ts';
import { modeOptions } from './options.ts';

const FOREIGN_RULE = encodeRule([immediate(0, Buffer.from('ffff', 'hex'))]);

function newBackend(fake: FakeTables): NftBackend {
  const options = modeOptions({ nodePortSelection: ['all'], rejectsOnLocalhost: true });
  return new NftBackend(fake.tables, { ...options, onWarning: assert.fail });
}

/** State, type and container of the objects that a mutation changes; undefined: it does not apply. */
type Mutation = (fake: FakeTables, pick: number) => readonly string[] | undefined;

function pickFrom<Value>(values: readonly Value[], pick: number): Value | undefined {
  return values[pick % Math.max(values.length, 1)];
}

function pickElement(fake: FakeTables, pick: number, isEligible = (_map: string) => true) {
  const all = MAP_NAMES.filter(isEligible).flatMap((map) =>
    [...(fake.sets.get(map) ?? [])].map(([key, element]) => ({ map, key, element })),
  );
  return pickFrom(all, pick);
}

/** Replaces the rules of a chain with at least `least` rules. */
function editRules(
  fake: FakeTables,
  pick: number,
  least: number,
  edit: (rules: Buffer[]) => Buffer[],
): string | undefined {
  const chains = [...fake.rules].filter(([, rules]) => rules.length >= least);
  const [chain, rules = []] = pickFrom(chains, pick) ?? [];
  if (chain === undefined) return undefined;
  const edited = edit(rules.map(({ expressions }) => expressions));
  fake.rules.set(
    chain,
    edited.map((expressions) => ({ expressions })),
  );
  return chain;
}

const MUTATIONS: Readonly<Record<string, Mutation>> = {
  'deleted element': (fake, pick) => {
    const found = pickElement(fake, pick);
    if (found === undefined) return undefined;
    fake.sets.get(found.map)?.delete(found.key);
    return [`missing element ${found.map}`];
  },
  'element with another value': (fake, pick) => {
    const hasData = (map: string) =>
      [...(fake.sets.get(map)?.values() ?? [])].some(({ data }) => data !== undefined);
    const found = pickElement(fake, pick, hasData);
    if (found === undefined) return undefined;
    const { map, key, element } = found;
    const data = Buffer.isBuffer(element.data)
      ? Buffer.from(element.data).fill(0xee)
      : ({ kind: 'jump', chain: 'services' } as const);
    fake.sets.get(map)?.set(key, { ...element, data });
    return [`changed element ${map}`];
  },
  'unknown element': (fake, pick) => {
    const found = pickElement(fake, pick);
    if (found === undefined) return undefined;
    const { map, element } = found;
    const other = (bytes: Buffer) => Buffer.concat([Buffer.from([99]), bytes.subarray(1)]);
    const { key, keyEnd } = element;
    const foreign = {
      ...element,
      key: other(key),
      ...(keyEnd === undefined ? {} : { keyEnd: other(keyEnd) }),
    };
    fake.putFromPacket(map, foreign);
    return [`unexpected element ${map}`];
  },
  'deleted rule': (fake, pick) => {
    const chain = editRules(fake, pick, 1, (rules) => rules.slice(1));
    return chain === undefined ? undefined : [`missing rule ${chain}`];
  },
  'inserted rule': (fake, pick) => {
    const chain = editRules(fake, pick, 0, (rules) => [FOREIGN_RULE, ...rules]);
    return chain === undefined ? undefined : [`unexpected rule ${chain}`];
  },
  'replaced rule': (fake, pick) => {
    const chain = editRules(fake, pick, 1, ([, ...rules]) => [FOREIGN_RULE, ...rules]);
    return chain === undefined ? undefined : [`changed rule ${chain}`];
  },
  'rules in another order': (fake, pick) => {
    const chain = editRules(fake, pick, 2, ([one, other, ...rest]) => [
      ...(other === undefined ? [] : [other]),
      ...(one === undefined ? [] : [one]),
      ...rest,
    ]);
    return chain === undefined ? undefined : [`changed rule ${chain}`, `changed rule ${chain}`];
  },
  'unknown chain': (fake) => {
    fake.chains.set('foreign', 0);
    return ['unexpected chain ip portwide'];
  },
  'deleted chain': (fake, pick) => {
    const [chain, rules = []] = pickFrom([...fake.rules], pick) ?? [];
    if (chain === undefined) return undefined;
    fake.chains.delete(chain);
    fake.rules.delete(chain);
    return ['missing chain ip portwide', ...rules.map(() => `missing rule ${chain}`)];
  },
  'base chain with another policy': (fake, pick) => {
    const [chain, base] = pickFrom([...fake.hooks], pick) ?? [];
    if (chain === undefined || base === undefined) return undefined;
    fake.hooks.set(chain, { ...base, policy: 0 });
    return ['changed chain ip portwide'];
  },
  'deleted counter': (fake, pick) => {
    fake.counters.delete(pickFrom([...fake.counters.keys()], pick) ?? '');
    return ['missing counter ip portwide'];
  },
};

const summary = ({ state, type, in: where }: ComparedObject) => `${state} ${type} ${where}`;

describe('compare: mode nftables', () => {
  it('finds nothing after any syncs, then exactly what another program changed', async function () {
    this.timeout(60_000);
    await fc.assert(
      fc.asyncProperty(
        fc.array(change, { minLength: 1, maxLength: 12 }),
        fc.constantFrom(...Object.keys(MUTATIONS)),
        fc.nat(1000),
        fc.boolean(),
        async (steps, mutation, pick, isFull) => {
          const fake = new FakeTables();
          const backend = newBackend(fake);
          assert.equal((await backend.compare()).compared, 0);
          await backend.apply(true);
          const feed = feeder(backend, 'IPv4');
          for (const step of steps) {
            feed(step);
            const waiting = await backend.compare();
            assert.deepEqual(waiting.objects, [], 'it compares with the applied state');
            await backend.apply(isFull);
          }
          const clean = await backend.compare();
          assert.deepEqual(clean.objects, []);
          assert.ok(clean.compared > 50);
          fake.log = [];
          const expected = MUTATIONS[mutation]?.(fake, pick);
          if (expected === undefined) return;
          const { objects } = await backend.compare();
          assert.deepEqual(objects.map(summary).sort(), [...expected].sort());
          for (const object of objects) {
            if (object.service === null) continue;
            const one = await backend.compare(object.service);
            const wrong = one.objects.filter(({ state }) => state !== 'ok');
            assert.deepEqual(wrong, [object]);
          }
          assert.deepEqual(fake.log, [], 'it writes nothing');
          await backend.apply(true);
          assert.deepEqual((await backend.compare()).objects, [], 'a full sync repairs it');
        },
      ),
      { numRuns: 60 },
    );
  });

  it('reports an unknown address in the set of owned addresses', async () => {
    const fake = new FakeTables();
    const backend = newBackend(fake);
    const feed = feeder(backend, 'IPv4');
    feed({
      upsert: service({ ownedPortsAnnotation: '20000-20999/UDP', portsPerPodAnnotation: '100' }),
    });
    feed({ upsert: slice([endpoint('10.244.1.5', { ordinal: 0 })]) });
    await backend.apply(true);
    const unknown = Buffer.from([10, 96, 0, 11]);
    fake.putFromPacket('owned-addresses', { key: unknown });
    const { objects } = await backend.compare();
    assert.deepEqual(objects.map(summary), ['unexpected element owned-addresses']);
  });

  it('returns a limited number of objects, and counts all that differ', async () => {
    const fake = new FakeTables();
    const backend = newBackend(fake);
    const routes = Array.from({ length: MAX_COMPARED_OBJECTS / 4 + 10 }, (_, index) =>
      route(
        {
          id: `route ${index}`,
          clusterIP: `10.${index >> 16}.${(index >> 8) & 255}.${index & 255}`,
        },
        ['10.244.0.1', '10.244.0.2'],
      ),
    );
    backend.update(routes, []);
    await backend.apply(true);
    const { compared } = await backend.compare();
    fake.clear();
    const { objects, different, compared: after } = await backend.compare();
    assert.equal(objects.length, MAX_COMPARED_OBJECTS);
    assert.equal(different, compared);
    assert.equal(after, compared);
  });

  it('reads a Service with many endpoints with one dump', async () => {
    const fake = new FakeTables();
    const backend = newBackend(fake);
    const pods = Array.from({ length: 600 }, (_, index) => `10.244.${index >> 8}.${index & 255}`);
    backend.update([route({}, pods)], []);
    await backend.apply(true);
    const key = [...(fake.sets.get('endpoints')?.keys() ?? [])][7] ?? '';
    fake.sets.get('endpoints')?.delete(key);
    const { compared, objects } = await backend.compare('default/web');
    assert.equal(compared, 1206);
    assert.deepEqual(
      objects.filter(({ state }) => state !== 'ok').map(({ desired, actual }) => [desired, actual]),
      [['10.96.0.10 . tcp . 80 . 7 : 10.244.0.7 . 8080', null]],
    );
  });

  it('reads only the slices of the Service in maps of exact slices', async () => {
    const fake = new FakeTables();
    const backend = newBackend(fake);
    const feed = feeder(backend, 'IPv4');
    feed({
      upsert: service({ ownedPortsAnnotation: '20480-21503/UDP', portsPerPodAnnotation: '128' }),
    });
    feed({ upsert: slice([endpoint('10.244.1.5', { ordinal: 0 })]) });
    await backend.apply(true);
    const [owned] = [...(fake.sets.get('udp-owners-of-128')?.values() ?? [])];
    assert.ok(owned);
    const vacant = Buffer.concat([owned.key.subarray(0, 4), portField(21_376)]);
    fake.putFromPacket('udp-owners-of-128', { ...owned, key: vacant });
    const dumps: string[] = [];
    fake.onDump = (set) => {
      dumps.push(set);
      return false;
    };
    const { objects } = await backend.compare('default/web');
    const wrong = objects.filter(({ state }) => state !== 'ok').map(({ actual }) => actual);
    assert.deepEqual(wrong, ['10.96.0.10 . 21376 : 10.244.1.5']);
    assert.deepEqual(
      dumps.filter((set) => set.endsWith('-of-128')),
      [],
    );
  });
});

describe('rule-text: encoded rules', () => {
  it('shows the expressions of rules that the agent cannot write', () => {
    assert.equal(encodedRuleText(FOREIGN_RULE), '[ immediate to=8 value=0xffff ]');
  });
});
