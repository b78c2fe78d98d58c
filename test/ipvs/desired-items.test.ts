import assert from 'node:assert/strict';
import fc from 'fast-check';
import { DesiredItems } from '../../ipvs/desired-items.ts';
import { type IpvsItem, itemKey } from '../../ipvs/items.ts';
import { isRanged } from '../../ipvs/port-ranges.ts';

const VIP = '203.0.113.1';
const PORTS = 10;

/** What one Service needs. */
interface Asked {
  readonly mark: number;
  /** For each port: whether this Service has it. */
  readonly ports: readonly boolean[];
  readonly hasAll: boolean;
  readonly persistenceSeconds: number;
  readonly endpoints: readonly string[];
}

function itemsOf({ mark, ports, hasAll, persistenceSeconds, endpoints }: Asked): IpvsItem[] {
  const service = { kind: 'mark', family: 'IPv4', mark } as const;
  const config = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds };
  return [
    { kind: 'service', service, config },
    ...endpoints.map(
      (address): IpvsItem => ({ kind: 'destination', service, destination: { address, port: 0 } }),
    ),
    ...(hasAll
      ? [{ kind: 'entry', set: 'KUBE-ALL-PORTS', entry: { ip: VIP, skbMark: mark } } as const]
      : []),
    ...rangesOf(ports).map(
      ([port, portTo]): IpvsItem => ({
        kind: 'entry',
        set: 'KUBE-PORT-RANGES',
        entry: { ip: VIP, protocol: 'TCP', port, portTo, skbMark: mark },
      }),
    ),
    { kind: 'address', address: VIP },
  ];
}

/** Runs of ports, and a shorter range in each: ranges of one Service may overlap. */
function rangesOf(ports: readonly boolean[]): [from: number, to: number][] {
  const runs: [number, number][] = [];
  for (const [port, isOwn] of ports.entries()) {
    if (!isOwn) continue;
    const last = runs.at(-1);
    if (last?.[1] === port - 1) last[1] = port;
    else runs.push([port, port]);
  }
  return runs.flatMap(([from, to]) => [
    [from, to],
    ...(to > from + 1 ? [[from + 1, to] as [number, number]] : []),
  ]);
}

/** Applies changes as the backend does. */
class SimulatedKernel {
  readonly #state = new Map<string, string>();

  apply(desired: DesiredItems): void {
    const differences = desired.takeChanges();
    for (const { after } of differences) if (after !== undefined) this.write(after);
    for (const { before, after } of differences) {
      if (before === undefined || after !== undefined) continue;
      const undesired = before.kind === 'entry' ? desired.undesiredParts(before) : [before];
      for (const item of undesired.flatMap(single)) this.#state.delete(itemKey(item));
    }
  }

  write(item: IpvsItem): void {
    for (const each of single(item)) this.#state.set(itemKey(each), textOf(each));
  }

  get sorted(): readonly (readonly [string, string])[] {
    return [...this.#state].sort(([a], [b]) => (a < b ? -1 : 1));
  }
}

/** An item as the kernel stores it, port by port. */
function single(item: IpvsItem): IpvsItem[] {
  if (item.kind !== 'entry' || !isRanged(item.set)) return [item];
  const { port = 0, portTo = port, ...rest } = item.entry;
  return Array.from({ length: portTo - port + 1 }, (_, step) => ({
    ...item,
    entry: { ...rest, port: port + step },
  }));
}

function textOf(item: IpvsItem): string {
  if (item.kind === 'service') return JSON.stringify(item.config);
  return item.kind === 'entry' ? `${item.entry.skbMark}` : '';
}

const asked = fc.record({
  persistenceSeconds: fc.constantFrom(0, 60),
  endpoints: fc.subarray(['10.244.0.1', '10.244.0.2']),
});

/** Two Services share a VIP. Each port, and all others, belongs to one of them or to none. */
const state = fc
  .record({
    owners: fc.array(fc.constantFrom(undefined, 0, 1), { minLength: PORTS, maxLength: PORTS }),
    allOf: fc.constantFrom(undefined, 0, 1),
    marks: fc.constantFrom([0x1002, 0x1003], [0x1003, 0x1002], [0x1004, 0x1005]),
    services: fc.tuple(asked, asked),
    exist: fc.tuple(fc.boolean(), fc.boolean()),
  })
  .map(({ owners, allOf, marks, services, exist }) =>
    services.map((each, index): Asked | undefined =>
      exist[index] === true
        ? {
            ...each,
            mark: marks[index] ?? 0,
            ports: owners.map((owner) => owner === index),
            hasAll: allOf === index,
          }
        : undefined,
    ),
  );

describe('desired-items: items and changes', () => {
  it('returns changes that lead the kernel to the desired items, for any order of updates', () => {
    const steps = fc.array(fc.record({ state, first: fc.nat(1), isApplied: fc.boolean() }), {
      minLength: 1,
      maxLength: 8,
    });
    fc.assert(
      fc.property(steps, (each) => {
        const desired = new DesiredItems();
        const kernel = new SimulatedKernel();
        const current: IpvsItem[][] = [[], []];
        for (const { state: services, first, isApplied } of [
          ...each,
          { state: [undefined, undefined], first: 0, isApplied: true },
        ]) {
          for (const index of [first, 1 - first]) {
            const service = services[index];
            const items = service === undefined ? [] : itemsOf(service);
            for (const item of items) desired.addReference(item);
            for (const item of current[index] ?? []) desired.removeReference(item);
            current[index] = items;
          }
          if (!isApplied) continue;
          kernel.apply(desired);
          const fresh = new SimulatedKernel();
          for (const item of current.flat()) fresh.write(item);
          assert.deepEqual(kernel.sorted, fresh.sorted);
          assert.deepEqual(desired.takeChanges(), []);
        }
        assert.deepEqual([...desired.items()], []);
      }),
      { seed: 42, numRuns: 2000 },
    );
  });

  it('throws when it removes a reference that does not exist', () => {
    assert.throws(
      () => new DesiredItems().removeReference({ kind: 'address', address: VIP }),
      TypeError,
    );
  });

  it('records no change when an item is added and removed again', () => {
    const desired = new DesiredItems();
    const item: IpvsItem = { kind: 'address', address: VIP };
    desired.addReference(item);
    desired.removeReference(item);
    assert.deepEqual(desired.takeChanges(), []);
    desired.addReference(item);
    desired.takeChanges();
    desired.removeReference(item);
    desired.addReference(item);
    assert.deepEqual(desired.takeChanges(), []);
    assert.deepEqual([...desired.items()], [item]);
  });
});
