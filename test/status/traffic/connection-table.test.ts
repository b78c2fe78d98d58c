import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ConnectionTable, type CountedEntry } from '../../../status/traffic/connection-table.ts';
import { TrafficCounters } from '../../../status/traffic/traffic-counters.ts';
import { checkProperty } from '../../netlink/property.ts';

const SERVICE = 'default/web';

/** A conntrack table whose dumps are interrupted by changes. */
class SimulatedConntrack {
  readonly counters = new TrafficCounters();
  readonly table: ConnectionTable<CountedEntry>;
  readonly #live = new Map<number, { packets: number; bytes: number }>();
  #events: CountedEntry[] = [];
  /** Replies of the dump that the process has not read yet. */
  #replies: CountedEntry[] = [];
  /** IDs that the dump has not reached yet; undefined without a dump. */
  #left: number[] | undefined;
  #lastId = 0;
  opened = 0;
  packets = 0;
  bytes = 0;

  constructor(max?: number) {
    this.table = new ConnectionTable(() => this.counters.of(SERVICE, 'pod', 'TCP/80'), max);
  }

  get live(): number {
    return this.#live.size;
  }

  open(): void {
    this.#live.set(++this.#lastId, { packets: 0, bytes: 0 });
    this.opened += 1;
    this.send(this.#lastId);
  }

  send(which: number): void {
    const ids = [...this.#live.keys()];
    const entry = this.#live.get(ids[which % Math.max(ids.length, 1)] ?? 0);
    if (entry === undefined) return;
    entry.packets += 1;
    entry.bytes += 100 + which;
    this.packets += 1;
    this.bytes += 100 + which;
  }

  close(which: number): void {
    const ids = [...this.#live.keys()];
    const id = ids[which % Math.max(ids.length, 1)];
    if (id === undefined) return;
    this.#events.push(this.#read(id));
    this.#live.delete(id);
  }

  beginDump(): void {
    if (this.#left !== undefined) return;
    this.table.beginDump();
    this.#left = [...this.#live.keys()];
  }

  /** The kernel writes a part of the dump. */
  writeReplies(count: number): void {
    for (const id of this.#left?.splice(0, count) ?? []) {
      if (this.#live.has(id)) this.#replies.push(this.#read(id));
    }
  }

  readReplies(): void {
    for (const reply of this.#replies) this.table.seen(reply);
    this.#replies = [];
  }

  readEvents(): void {
    for (const event of this.#events) this.table.ended(event);
    this.#events = [];
  }

  endDump(): void {
    if (this.#left === undefined) return;
    this.writeReplies(Infinity);
    this.readReplies();
    this.readEvents();
    this.#left = undefined;
    for (const _ of this.table.endDump());
    this.counters.endSample(1);
  }

  dump(): void {
    this.beginDump();
    this.endDump();
  }

  #read(id: number): CountedEntry {
    return { id, details: { counters: { packets: 0, bytes: 0, ...this.#live.get(id) } } };
  }
}

const steps = [
  'open',
  'send',
  'close',
  'beginDump',
  'writeReplies',
  'readReplies',
  'readEvents',
  'endDump',
] as const;

describe('ConnectionTable: counters from dumps and end events', () => {
  it('counts each connection, packet and byte once, however dumps and events interleave', () => {
    const step = fc.record({ what: fc.constantFrom(...steps), number: fc.nat(5) });
    checkProperty(
      fc.property(fc.nat(5), fc.array(step, { maxLength: 60, size: 'max' }), (existing, list) => {
        const conntrack = new SimulatedConntrack();
        for (let count = 0; count < existing; count++) conntrack.open();
        conntrack.dump();
        const { opened, packets, bytes } = conntrack;
        for (const { what, number } of list) conntrack[what](number);
        conntrack.endDump();
        conntrack.dump();
        const values = conntrack.counters.service(SERVICE)?.sampled;
        assert.deepEqual(
          [values?.opened ?? 0, values?.packets ?? 0, values?.bytes ?? 0, values?.connections ?? 0],
          [
            conntrack.opened - opened,
            conntrack.packets - packets,
            conntrack.bytes - bytes,
            conntrack.live,
          ],
        );
        assert.equal(conntrack.table.size, conntrack.live);
      }),
    );
  });

  it('counts connections beyond its size when they end', () => {
    const conntrack = new SimulatedConntrack(2);
    conntrack.dump();
    for (let count = 0; count < 5; count++) conntrack.open();
    conntrack.dump();
    assert.equal(conntrack.table.untracked, 3);
    assert.equal(conntrack.counters.service(SERVICE)?.sampled.opened, 2);
    for (let count = 0; count < 5; count++) conntrack.close(0);
    conntrack.dump();
    const values = conntrack.counters.service(SERVICE)?.sampled;
    assert.deepEqual([values?.opened, values?.packets, values?.connections], [5, 5, 0]);
  });

  it('forgets a connection that ends without an event after two dumps, and keeps its traffic', () => {
    const counters = new TrafficCounters();
    const table = new ConnectionTable(() => counters.of(SERVICE, 'pod', 'TCP/80'));
    const dump = (entries: readonly CountedEntry[]) => {
      table.beginDump();
      for (const entry of entries) table.seen(entry);
      for (const _ of table.endDump());
      counters.endSample(1);
    };
    dump([]);
    dump([{ id: 1, details: { counters: { packets: 3, bytes: 300 } } }]);
    dump([]);
    dump([]);
    const values = counters.service(SERVICE)?.sampled;
    assert.deepEqual([values?.connections, values?.opened, values?.bytes], [0, 1, 300]);
    assert.equal(table.size, 0);
  });

  it('counts an end for several, if it stands for several', () => {
    const counters = new TrafficCounters();
    const table = new ConnectionTable<CountedEntry>(() => counters.of(SERVICE, 'pod', 'TCP/80'));
    const entry = (id: number, packets: number): CountedEntry => ({
      id,
      details: { counters: { packets, bytes: 100 * packets } },
    });
    for (const packets of [1, 3]) {
      table.beginDump();
      table.seen(entry(1, packets));
      for (const _ of table.endDump());
    }
    table.ended(entry(1, 4), 8);
    table.ended(entry(2, 5), 8);
    const total = counters.service(SERVICE);
    // Two packets between the dumps, and eight times one packet and five.
    assert.equal(total?.packets, 2 + 8 * 1 + 8 * 5);
    assert.equal(total?.bytes, 100 * (total?.packets ?? 0));
    assert.equal(total?.opened, 8);
    assert.equal(total?.connections, 0);
  });

  it('follows the dump with the number of connections while ends are sampled', () => {
    const counters = new TrafficCounters();
    const table = new ConnectionTable<CountedEntry>(() => counters.of(SERVICE, 'pod', 'TCP/80'));
    const entry = (id: number, packets: number): CountedEntry => ({
      id,
      details: { counters: { packets, bytes: 100 * packets } },
    });
    const dump = (ids: readonly number[], packets: number, ends: readonly CountedEntry[] = []) => {
      table.beginDump();
      for (const id of ids) table.seen(entry(id, packets));
      for (const each of ends) table.ended(each, 8);
      for (const _ of table.endDump());
      counters.endSample(1);
      return counters.service(SERVICE)?.sampled;
    };
    dump([1, 2, 3, 4, 5], 1);
    // Of the ends of 2 to 5 one is read.
    assert.equal(dump([1], 2, [entry(5, 1)])?.connections, 1);
    // A connection that a dump missed is no new one, and its packets do not count again.
    const again = dump([1, 4], 3, [entry(9, 1)]);
    assert.deepEqual([again?.connections, again?.opened, again?.packets], [2, 8, 2 + 2 + 8]);
    // It may also end while it is missing.
    dump([1], 3, [entry(9, 1)]);
    table.ended(entry(4, 3));
    assert.equal(counters.service(SERVICE)?.connections, 1);
    dump([1], 3, [entry(9, 1)]);
    assert.equal(table.size, 1);
    assert.equal(counters.service(SERVICE)?.connections, 1);
  });

  it('counts connections where the kernel counts no packets', () => {
    const counters = new TrafficCounters();
    const table = new ConnectionTable(() => counters.of(SERVICE, 'pod', 'TCP/80'));
    table.beginDump();
    for (const _ of table.endDump());
    table.ended({ id: 1, details: { counters: undefined } });
    assert.equal(counters.service(SERVICE)?.opened, 1);
  });
});

describe('TrafficCounters: bounded counters', () => {
  it('sums the ports beyond the limit', () => {
    const counters = new TrafficCounters({ portsOfService: 2, counters: 100 });
    for (const port of ['TCP/1', 'TCP/2', 'TCP/3', 'TCP/4', 'TCP/1']) {
      for (const counter of counters.of(SERVICE, 'pod', port)) counter.opened += 1;
    }
    const opened = [...counters.list('port')].map(({ key, opened }) => [key.port, opened]);
    assert.deepEqual(opened, [
      ['TCP/1', 2],
      ['TCP/2', 1],
      ['others', 2],
    ]);
    assert.equal(counters.service(SERVICE)?.opened, 5);
  });

  it('keeps no more counters than the limit, and says what it does not count', () => {
    const counters = new TrafficCounters({ portsOfService: 10, counters: 6 });
    for (let service = 0; service < 5; service++)
      counters.of(`default/s${service}`, 'pod', 'TCP/1');
    assert.equal([...counters.list('service')].length, 2);
    assert.equal(counters.uncounted, 3);
  });

  it('forgets idle counters, but none with connections', () => {
    const counters = new TrafficCounters();
    const [total] = counters.of(SERVICE, 'pod', 'TCP/80');
    assert.ok(total !== undefined);
    for (const counter of counters.of(SERVICE, 'pod', 'TCP/80')) counter.connections += 1;
    for (let sample = 0; sample < 100; sample++) counters.endSample(1);
    assert.equal(counters.service(SERVICE), total);
    for (const counter of counters.of(SERVICE, 'pod', 'TCP/80')) counter.connections -= 1;
    for (let sample = 0; sample < 100; sample++) counters.endSample(1);
    assert.equal(counters.service(SERVICE), undefined);
  });

  it('computes rates over the sample interval', () => {
    const counters = new TrafficCounters();
    counters.endSample(undefined);
    const [total] = counters.of(SERVICE, 'pod', 'TCP/80');
    assert.ok(total !== undefined);
    total.opened += 10;
    total.bytes += 1000;
    counters.endSample(2);
    assert.deepEqual(total.sampled.rates, { opened: 5, packets: 0, bytes: 500 });
    counters.endSample(2);
    assert.deepEqual(total.sampled.rates, { opened: 0, packets: 0, bytes: 0 });
  });
});
