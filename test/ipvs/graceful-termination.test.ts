import assert from 'node:assert/strict';
import { GracefulTermination } from '../../ipvs/graceful-termination.ts';
import { destinationText, type IpvsItem, itemKey, serviceText } from '../../ipvs/items.ts';
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

/** An IPVS table in memory, with the desired state. */
class Table {
  readonly desired = new Set<string>();
  readonly serving = new Set<string>();
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
        isDesired: (key) => this.desired.has(key),
        endpointState: (service, destination) => {
          const text = destinationText(service, destination);
          return this.serving.has(text) ? 'serving' : this.gone.has(text) ? 'gone' : 'notServing';
        },
      },
    );
  }

  /** Sets the connections of a destination. */
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

  deleteExternally(service: IpvsServiceKey, destination: IpvsDestinationKey): void {
    this.#of(service).delete(destinationText(service, destination));
  }

  weight(service: IpvsServiceKey, destination: IpvsDestinationKey): number | undefined {
    return this.#of(service).get(destinationText(service, destination))?.weight;
  }

  start(service: IpvsServiceKey, ...destinations: IpvsDestinationKey[]): Promise<void> {
    return this.draining.start(destinations.map((destination) => ({ service, destination })));
  }

  deferRemoval(service: IpvsServiceKey, item: IpvsItem): boolean {
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

const serviceItem = (service: IpvsServiceKey): IpvsItem => ({
  kind: 'service',
  service,
  config: { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 },
});
const MARK_RECORD: IpvsItem = {
  kind: 'entry',
  set: 'KUBE-MARKS',
  entry: { ip: '203.0.113.1', mark: 0x1002, comment: 'default/web cluster' },
};

describe('graceful-termination: destinations that are no longer desired', () => {
  it('gives a TCP destination weight 0, and deletes it when its last connection has ended', async () => {
    const table = new Table();
    table.desired.add(serviceText(TCP));
    table.set(TCP, POD, { activeConnections: 1 });
    await table.start(TCP, POD);
    assert.equal(table.weight(TCP, POD), 0);
    table.set(TCP, POD, { activeConnections: 0, inactiveConnections: 1 });
    await table.draining.checkAll();
    assert.equal(table.weight(TCP, POD), 0, 'connections are still closing');
    assert.ok(table.draining.has(serviceText(TCP), destinationText(TCP, POD)));
    table.set(TCP, POD, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.equal(table.weight(TCP, POD), undefined);
    assert.ok(table.draining.isEmpty);
  });

  it('deletes a destination at once when it has no connections', async () => {
    const table = new Table();
    table.set(TCP, POD, {});
    await table.start(TCP, POD);
    assert.equal(table.weight(TCP, POD), undefined);
    assert.ok(table.draining.isEmpty);
  });

  it('ignores closed connections when the TCP service is removed too', async () => {
    const table = new Table();
    table.set(TCP, POD, { inactiveConnections: 1 });
    await table.start(TCP, POD);
    assert.equal(table.weight(TCP, POD), undefined);
  });

  for (const service of [UDP, SCTP]) {
    it(`deletes destinations of ${serviceText(service)} at once, unless the endpoint still serves`, async () => {
      const busy = { activeConnections: 1, inactiveConnections: 1 };
      const table = new Table();
      table.desired.add(serviceText(service));
      table.serving.add(destinationText(service, OTHER));
      table.set(service, POD, busy);
      table.set(service, OTHER, busy);
      await table.start(service, POD, OTHER);
      assert.equal(table.weight(service, POD), undefined);
      assert.equal(table.weight(service, OTHER), 0);
      table.serving.clear();
      await table.draining.check([serviceText(service)]);
      assert.equal(table.weight(service, OTHER), undefined);
    });
  }

  it('waits for handshakes with fwmark destinations, which IPVS counts like UDP flows', async () => {
    const table = new Table();
    table.desired.add(serviceText(MARK));
    for (const pod of [POD, OTHER]) table.set(MARK, pod, { inactiveConnections: 1 });
    await table.start(MARK, POD, OTHER);
    assert.ok(table.draining.needsHandshakeCheck);
    assert.equal(table.weight(MARK, POD), 0);
    await table.draining.checkHandshakes();
    assert.equal(table.weight(MARK, OTHER), 0, 'draining may have started just now');
    table.set(MARK, POD, { activeConnections: 1, inactiveConnections: 0 });
    await table.draining.checkHandshakes();
    assert.equal(table.weight(MARK, POD), 0, 'it was a handshake');
    assert.equal(table.weight(MARK, OTHER), undefined, 'it was a UDP flow');
    assert.ok(!table.draining.needsHandshakeCheck);
  });

  it('deletes a fwmark destination when no connection is active, so that UDP flows move on', async () => {
    const table = new Table();
    table.desired.add(serviceText(MARK));
    table.set(MARK, POD, { activeConnections: 1, inactiveConnections: 5 });
    await table.start(MARK, POD);
    assert.equal(table.weight(MARK, POD), 0);
    table.set(MARK, POD, { activeConnections: 0 });
    for (let time = 0; time < 2; time++) await table.draining.checkHandshakes();
    assert.equal(table.weight(MARK, POD), undefined);
  });

  it('deletes a fwmark destination with TCP connections two checks after its pod left all slices', async () => {
    const table = new Table();
    table.desired.add(serviceText(MARK));
    for (const pod of [POD, OTHER]) table.set(MARK, pod, { activeConnections: 1 });
    table.gone.add(destinationText(MARK, POD));
    await table.start(MARK, POD, OTHER);
    await table.draining.check([serviceText(MARK)]);
    await table.draining.checkAll();
    assert.equal(table.weight(MARK, POD), 0, 'another slice may arrive');
    await table.draining.checkAll();
    assert.equal(table.weight(MARK, POD), undefined);
    await table.draining.checkAll();
    assert.equal(table.weight(MARK, OTHER), 0, 'a pod in a slice keeps its connections');
  });

  it('keeps a fwmark destination for its UDP flows while the endpoint still serves', async () => {
    const table = new Table();
    table.desired.add(serviceText(MARK));
    table.serving.add(destinationText(MARK, POD));
    table.set(MARK, POD, { inactiveConnections: 5 });
    await table.start(MARK, POD);
    assert.equal(table.weight(MARK, POD), 0);
  });

  it('keeps the service and its mark record until the last destination is deleted', async () => {
    const table = new Table();
    table.set(MARK, POD, { activeConnections: 1 });
    table.set(MARK, OTHER, { activeConnections: 1 });
    await table.start(MARK, POD, OTHER);
    for (const item of [serviceItem(MARK), MARK_RECORD]) {
      assert.ok(table.deferRemoval(MARK, item));
      assert.ok(table.draining.has(serviceText(MARK), itemKey(item)));
    }
    table.set(MARK, POD, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.deepEqual(table.removed, []);
    table.set(MARK, OTHER, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.deepEqual(table.removed, [serviceText(MARK), itemKey(MARK_RECORD)]);
    assert.ok(
      !table.deferRemoval(MARK, serviceItem(MARK)),
      'nothing is deferred without a draining destination',
    );
  });

  it('keeps a service that is desired again', async () => {
    const table = new Table();
    table.set(MARK, POD, { activeConnections: 1 });
    await table.start(MARK, POD);
    table.deferRemoval(MARK, serviceItem(MARK));
    table.deferRemoval(MARK, MARK_RECORD);
    table.desired.add(serviceText(MARK));
    table.set(MARK, POD, NO_CONNECTIONS);
    await table.draining.checkAll();
    assert.deepEqual(table.removed, [itemKey(MARK_RECORD)]);
  });

  it('stops draining a destination that is desired again', async () => {
    const table = new Table();
    table.desired.add(serviceText(TCP));
    table.set(TCP, POD, { activeConnections: 1 });
    await table.start(TCP, POD);
    table.desired.add(destinationText(TCP, POD));
    table.set(TCP, POD, { ...NO_CONNECTIONS, weight: 1 });
    await table.draining.checkAll();
    assert.equal(table.weight(TCP, POD), 1);
    assert.ok(table.draining.isEmpty);
  });

  it('accepts that another program has deleted a draining destination', async () => {
    const table = new Table();
    table.set(TCP, POD, { activeConnections: 1 });
    await table.start(TCP, POD);
    table.deleteExternally(TCP, POD);
    await table.draining.checkAll();
    assert.deepEqual(table.changes, ['edit-destination']);
    assert.ok(table.draining.isEmpty);
  });
});
