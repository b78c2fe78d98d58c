import assert from 'node:assert/strict';
import { GracefulTermination } from '../../ipvs/graceful-termination.ts';
import { destinationText, type Item, itemKey, serviceText } from '../../ipvs/items.ts';
import type {
  IpvsChange,
  IpvsDestinationKey,
  IpvsDestinationState,
  IpvsServiceKey,
} from '../../netlink/ipvs/ipvs.ts';

const TCP: IpvsServiceKey = {
  kind: 'address',
  family: 'IPv4',
  protocol: 'TCP',
  address: '10.96.0.1',
  port: 80,
};
const UDP: IpvsServiceKey = { ...TCP, protocol: 'UDP' };
const SCTP: IpvsServiceKey = { ...TCP, protocol: 'SCTP' };
const MARK: IpvsServiceKey = { kind: 'mark', family: 'IPv4', mark: 0x1002 };
const POD = { address: '10.244.0.1', port: 8080 };
const OTHER = { address: '10.244.0.2', port: 8080 };

const NO_CONNECTIONS = { activeConnections: 0, inactiveConnections: 0 };

/** An IPVS table, with a word on what is wanted. */
class Table {
  readonly wanted = new Set<string>();
  readonly alive = new Set<string>();
  readonly gone = new Set<string>();
  readonly changes: IpvsChange['op'][] = [];
  readonly removed: string[] = [];
  readonly draining: GracefulTermination;
  readonly #states = new Map<string, Map<string, IpvsDestinationState>>();

  constructor() {
    this.draining = new GracefulTermination(
      {
        destinations: async (service) => [...this.#of(service).values()],
        change: async (changes) => this.#change(changes),
        remove: async (items) => {
          this.removed.push(...items.map(itemKey));
        },
      },
      {
        isDesired: (key) => this.wanted.has(key),
        endpointState: (service, destination) => {
          const text = destinationText(service, destination);
          return this.alive.has(text) ? 'alive' : this.gone.has(text) ? 'gone' : 'unready';
        },
      },
    );
  }

  /** Connections to a destination. */
  set(
    service: IpvsServiceKey,
    destination: IpvsDestinationKey,
    connections: Partial<IpvsDestinationState>,
  ): void {
    const text = destinationText(service, destination);
    this.#of(service).set(text, {
      ...destination,
      weight: 1,
      masquerade: true,
      persistentConnections: 0,
      ...NO_CONNECTIONS,
      ...this.#of(service).get(text),
      ...connections,
    });
  }

  forget(service: IpvsServiceKey, destination: IpvsDestinationKey): void {
    this.#of(service).delete(destinationText(service, destination));
  }

  weight(service: IpvsServiceKey, destination: IpvsDestinationKey): number | undefined {
    return this.#of(service).get(destinationText(service, destination))?.weight;
  }

  start(service: IpvsServiceKey, ...destinations: IpvsDestinationKey[]): Promise<void> {
    return this.draining.start(destinations.map((destination) => ({ service, destination })));
  }

  keep(service: IpvsServiceKey, item: Item): boolean {
    return this.draining.deferRemoval(serviceText(service), item);
  }

  #change(changes: readonly IpvsChange[]): void {
    for (const change of changes) {
      this.changes.push(change.op);
      if (change.op === 'delete-destination') {
        const text = destinationText(change.key, change.destination);
        assert.ok(this.#of(change.key).delete(text), `${text} is deleted once`);
      } else if (change.op === 'edit-destination') {
        this.set(change.key, change.destination, change.destination);
      } else throw new Error(`draining does not ${change.op}`);
    }
  }

  #of(service: IpvsServiceKey): Map<string, IpvsDestinationState> {
    const key = serviceText(service);
    const states = this.#states.get(key) ?? new Map<string, IpvsDestinationState>();
    this.#states.set(key, states);
    return states;
  }
}

const serviceItem = (service: IpvsServiceKey): Item => ({
  kind: 'service',
  service,
  config: { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 },
});
const MARK_RECORD: Item = {
  kind: 'entry',
  set: 'KUBE-MARKS',
  entry: { ip: '203.0.113.1', mark: 0x1002, comment: 'default/web cluster' },
};

describe('draining: destinations that nobody wants any more', () => {
  it('of a TCP service take no new connections, and go when the last has ended', async () => {
    const table = new Table();
    table.wanted.add(serviceText(TCP));
    table.set(TCP, POD, { activeConnections: 1 });
    await table.start(TCP, POD);
    assert.equal(table.weight(TCP, POD), 0);
    table.set(TCP, POD, { activeConnections: 0, inactiveConnections: 1 });
    await table.draining.checkAll();
    assert.equal(table.weight(TCP, POD), 0, 'not while connections close');
    assert.ok(table.draining.has(serviceText(TCP), destinationText(TCP, POD)));
    table.set(TCP, POD, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.equal(table.weight(TCP, POD), undefined);
    assert.ok(table.draining.isEmpty);
  });

  it('go at once without connections', async () => {
    const table = new Table();
    table.set(TCP, POD, {});
    await table.start(TCP, POD);
    assert.equal(table.weight(TCP, POD), undefined);
    assert.ok(table.draining.isEmpty);
  });

  it('of a TCP service that goes do not wait for connections that are over', async () => {
    const table = new Table();
    table.set(TCP, POD, { inactiveConnections: 1 });
    await table.start(TCP, POD);
    assert.equal(table.weight(TCP, POD), undefined);
  });

  for (const service of [UDP, SCTP]) {
    it(`of ${serviceText(service)} go at once, unless they still drain by themselves`, async () => {
      const busy = { activeConnections: 1, inactiveConnections: 1 };
      const table = new Table();
      table.wanted.add(serviceText(service));
      table.alive.add(destinationText(service, OTHER));
      table.set(service, POD, busy);
      table.set(service, OTHER, busy);
      await table.start(service, POD, OTHER);
      assert.equal(table.weight(service, POD), undefined);
      assert.equal(table.weight(service, OTHER), 0);
      table.alive.clear();
      await table.draining.check([serviceText(service)]);
      assert.equal(table.weight(service, OTHER), undefined);
    });
  }

  it('of a mark wait for handshakes, which are counted like UDP flows', async () => {
    const table = new Table();
    table.wanted.add(serviceText(MARK));
    for (const pod of [POD, OTHER]) table.set(MARK, pod, { inactiveConnections: 1 });
    await table.start(MARK, POD, OTHER);
    assert.ok(table.draining.needsHandshakeCheck);
    assert.equal(table.weight(MARK, POD), 0);
    await table.draining.checkHandshakes();
    assert.equal(table.weight(MARK, OTHER), 0, 'it may have begun to drain just now');
    table.set(MARK, POD, { activeConnections: 1, inactiveConnections: 0 });
    await table.draining.checkHandshakes();
    assert.equal(table.weight(MARK, POD), 0, 'it was a handshake');
    assert.equal(table.weight(MARK, OTHER), undefined, 'it was a flow');
    assert.ok(!table.draining.needsHandshakeCheck);
  });

  it('of a mark go when no connection is active; UDP flows must move on', async () => {
    const table = new Table();
    table.wanted.add(serviceText(MARK));
    table.set(MARK, POD, { activeConnections: 1, inactiveConnections: 5 });
    await table.start(MARK, POD);
    assert.equal(table.weight(MARK, POD), 0);
    table.set(MARK, POD, { activeConnections: 0 });
    for (let time = 0; time < 2; time++) await table.draining.checkHandshakes();
    assert.equal(table.weight(MARK, POD), undefined);
  });

  it('of a mark go a round later when the pod is in no slice any more, TCP or not', async () => {
    const table = new Table();
    table.wanted.add(serviceText(MARK));
    for (const pod of [POD, OTHER]) table.set(MARK, pod, { activeConnections: 1 });
    table.gone.add(destinationText(MARK, POD));
    await table.start(MARK, POD, OTHER);
    await table.draining.check([serviceText(MARK)]);
    await table.draining.checkAll();
    assert.equal(table.weight(MARK, POD), 0, 'another slice may be on its way');
    await table.draining.checkAll();
    assert.equal(table.weight(MARK, POD), undefined);
    await table.draining.checkAll();
    assert.equal(table.weight(MARK, OTHER), 0, 'one that is there keeps its connections');
  });

  it('of a mark stay for their flows while the pod drains by itself', async () => {
    const table = new Table();
    table.wanted.add(serviceText(MARK));
    table.alive.add(destinationText(MARK, POD));
    table.set(MARK, POD, { inactiveConnections: 5 });
    await table.start(MARK, POD);
    assert.equal(table.weight(MARK, POD), 0);
  });

  it('keep their service and the record of its mark until the last of them is gone', async () => {
    const table = new Table();
    table.set(MARK, POD, { activeConnections: 1 });
    table.set(MARK, OTHER, { activeConnections: 1 });
    await table.start(MARK, POD, OTHER);
    for (const item of [serviceItem(MARK), MARK_RECORD]) {
      assert.ok(table.keep(MARK, item));
      assert.ok(table.draining.has(serviceText(MARK), itemKey(item)));
    }
    table.set(MARK, POD, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.deepEqual(table.removed, []);
    table.set(MARK, OTHER, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.deepEqual(table.removed, [serviceText(MARK), itemKey(MARK_RECORD)]);
    assert.ok(!table.keep(MARK, serviceItem(MARK)), 'nothing is kept for nobody');
  });

  it('leave a service that is wanted again alone', async () => {
    const table = new Table();
    table.set(MARK, POD, { activeConnections: 1 });
    await table.start(MARK, POD);
    table.keep(MARK, serviceItem(MARK));
    table.keep(MARK, MARK_RECORD);
    table.wanted.add(serviceText(MARK));
    table.set(MARK, POD, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.deepEqual(table.removed, [itemKey(MARK_RECORD)]);
  });

  it('stop draining when they are wanted again, and are not deleted then', async () => {
    const table = new Table();
    table.wanted.add(serviceText(TCP));
    table.set(TCP, POD, { activeConnections: 1 });
    await table.start(TCP, POD);
    table.wanted.add(destinationText(TCP, POD));
    table.set(TCP, POD, { ...NO_CONNECTIONS, weight: 1 });
    await table.draining.checkAll();
    assert.equal(table.weight(TCP, POD), 1);
    assert.ok(table.draining.isEmpty);
  });

  it('may be gone already, by the hand of somebody else', async () => {
    const table = new Table();
    table.set(TCP, POD, { activeConnections: 1 });
    await table.start(TCP, POD);
    table.forget(TCP, POD);
    await table.draining.checkAll();
    assert.deepEqual(table.changes, ['edit-destination']);
    assert.ok(table.draining.isEmpty);
  });
});
