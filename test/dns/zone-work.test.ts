/** Counts what a change and a query visit, in a headless Service with many endpoints. */
import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { EndpointSlice, Service } from '../../api/objects.ts';
import { createHandler } from '../../dns/handler.ts';
import { readQuery } from '../../dns/query.ts';
import { type DnsRecord, sliceRecords } from '../../dns/records.ts';
import { Zone } from '../../dns/zone.ts';
import { answerFromZone } from '../../dns/zone-answer.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { authority, queryBytes, readReply } from './messages.ts';
import { ask, zoneWith } from './zone-fixtures.ts';

const HEADLESS = service({ headless: true, clusterIPs: [] });
const NAME = 'web.default.svc.cluster.local';
const SLICES = 100;
const PER_SLICE = 20;
/** Of 2,000 endpoints with four records each. */
const WORK_PER_TURN = 1000;

describe('zone: work of a change and of a query', () => {
  let visited = 0;

  /** A slice that counts each visit of one of its endpoints. */
  function counted(index: number, first = 0): EndpointSlice {
    const endpoints = Array.from({ length: PER_SLICE }, (_, each) =>
      endpoint(`10.${first}.${index}.${each}`),
    );
    const observed = new Proxy(endpoints, {
      get(target, property, receiver) {
        if (typeof property === 'string' && /^\d+$/.test(property)) visited += 1;
        return Reflect.get(target, property, receiver) as unknown;
      },
    });
    const name = `web-${index}`;
    return slice(observed, {
      name,
      key: `default/${name}`,
      ports: [{ name: 'http', protocol: 'TCP', port: 80 }],
    });
  }

  const visitedBy = (change: () => void): number => {
    visited = 0;
    change();
    return visited;
  };

  it('visits the endpoints of the changed slice only', () => {
    const zone = zoneWith([HEADLESS]);
    const work: number[] = [];
    for (let index = 0; index < SLICES; index++) {
      work.push(visitedBy(() => zone.upsert(counted(index))));
    }
    assert.equal(zone.lookup(NAME)?.length, SLICES * PER_SLICE);
    // An update visits the slice as it was and as it is.
    work.push(visitedBy(() => zone.upsert(counted(SLICES / 2, 1))));
    for (let index = 0; index < SLICES; index++) {
      work.push(visitedBy(() => zone.remove('EndpointSlice', `default/web-${index}`)));
    }
    assert.equal(zone.lookup(NAME), undefined);
    assert.ok(Math.max(...work) <= 2 * PER_SLICE, work.join());
  });

  /** A zone after its first lists, with all slices of the Service. */
  function syncedZone(first: Service = HEADLESS): Zone {
    const zone = new Zone({ clusterDomain: 'cluster.local', workPerTurn: WORK_PER_TURN });
    zone.upsert(first);
    for (let index = 0; index < SLICES; index++) zone.upsert(counted(index));
    zone.synced('Service');
    zone.synced('EndpointSlice');
    return zone;
  }

  /**
   * Changes a Service, and waits until its name has this many records.
   * @param onTurn called after the change and after each turn of the event loop.
   * @returns visits of the change itself and of each turn.
   */
  async function changeService(
    zone: Zone,
    after: Service | undefined,
    count: number,
    onTurn: () => void = () => {},
  ): Promise<number[]> {
    const change = () =>
      after === undefined ? zone.remove('Service', HEADLESS.key) : zone.upsert(after);
    const visits = [visitedBy(change)];
    for (let idle = 0; idle < 3 || zone.lookup(NAME)?.length !== count; ) {
      onTurn();
      assert.ok(visits.length < 1000, 'the records do not follow the change');
      visited = 0;
      await nextTurn();
      visits.push(visited);
      idle = visited === 0 ? idle + 1 : 0;
      if (count === 0 && idle >= 3 && zone.lookup(NAME) === undefined) break;
    }
    onTurn();
    return visits;
  }

  const EXTERNAL = service({ ...HEADLESS, type: 'ExternalName', externalName: 'example.com' });
  const ALL = SLICES * PER_SLICE;

  it('spreads a change of the Service over turns of the event loop', async () => {
    const zone = syncedZone();
    const work = [
      ...(await changeService(zone, undefined, 0)),
      ...(await changeService(zone, HEADLESS, ALL)),
      ...(await changeService(zone, { ...HEADLESS, publishNotReadyAddresses: true }, ALL)),
      ...(await changeService(zone, EXTERNAL, 1)),
    ];
    assert.ok(Math.max(...work) <= WORK_PER_TURN, work.join());
    // No records are left of the endpoints.
    assert.deepEqual(zone.sizes, { ...zoneWith([EXTERNAL]).sizes, slices: SLICES });
  });

  it('keeps the names of a Service while its endpoints follow a change', async () => {
    const zone = syncedZone();
    const names = [NAME, `10-0-3-7.${NAME}`, `_http._tcp.${NAME}`];
    let turns = 0;
    await changeService(zone, { ...HEADLESS, publishNotReadyAddresses: true }, ALL, () => {
      turns += 1;
      for (const name of names)
        assert.ok(zone.lookup(name)?.length, `${name} after ${turns} turns`);
    });
    assert.ok(turns > 5, `${turns}`);
  });

  it('answers with the alias alone, or with endpoints alone, while the type changes', async () => {
    const zone = syncedZone();
    const lines = new Set<string>();
    const look = () => lines.add(ask(zone, NAME, 'CNAME').toString());
    await changeService(zone, EXTERNAL, 1, look);
    assert.deepEqual([...lines], ['CNAME example.com']);
    let turns = 0;
    const start = zone.serial;
    await changeService(zone, HEADLESS, ALL, () => {
      turns += 1;
      const records = zone.lookup(NAME) ?? [];
      assert.ok(records.length === 1 || records.length === ALL, `${records.length} records`);
      const alias = records.length === 1 ? ['CNAME example.com'] : 'NODATA';
      assert.deepEqual(ask(zone, NAME, 'CNAME'), alias);
    });
    assert.ok(turns > 5 && zone.serial > start, `${turns}`);
  });

  it('has records for endpoints and for ports, not for each endpoint with each port', () => {
    const endpoints = Array.from({ length: 1000 }, (_, index) =>
      endpoint(`10.0.${index >> 8}.${index & 255}`),
    );
    const ports = Array.from({ length: 100 }, (_, index) => ({
      name: `p${index}`,
      protocol: 'TCP' as const,
      port: 1000 + index,
    }));
    const { records } = sliceRecords(HEADLESS, slice(endpoints, { ports }), 'cluster.local');
    // Two addresses and a reverse name of each endpoint.
    assert.equal(records.length, 3 * endpoints.length);
    const zone = zoneWith([HEADLESS, slice(endpoints, { ports })]);
    assert.equal(zone.lookup(`_p99._tcp.${NAME}`)?.length, endpoints.length);
  });

  it('visits a part of the SRV targets that fits in the message', () => {
    const zone = syncedZone();
    const name = `_http._tcp.${NAME}`;
    let given = 0;
    const lookup: Zone['lookup'] = (...args) => {
      const found = zone.lookup(...args);
      given += found?.length ?? 0;
      return found;
    };
    const { clusterDomain, isSynced, serial } = zone;
    const handle = createHandler({
      authority: authority({ clusterDomain, isSynced, serial, lookup }),
      onInternalError: (error) => assert.fail(String(error)),
    });
    for (const [transport, limit] of [
      ['tcp', 65_535],
      ['udp', 512],
    ] as const) {
      for (const type of ['SRV', 'A', 'ANY']) {
        given = 0;
        const result = handle(queryBytes(name, type), transport);
        assert.ok('response' in result && result.response !== undefined);
        const { response } = result;
        assert.ok(response.length <= limit);
        const { flags, answers } = readReply(response);
        if (type !== 'SRV') {
          assert.ok(given <= 1, `${type}: ${given} records`);
          continue;
        }
        assert.match(flags, /\btc\b/);
        // Besides the answers, addresses of at most a hundred targets.
        assert.ok(given <= 2 * answers.length + 100, `${given} records for ${answers.length}`);
        assert.equal(new Set(answers).size, answers.length);
      }
    }
  });

  it('visits a part of the records that fits in the message', () => {
    const count = 100_000;
    const records = Array.from(
      { length: count },
      (_, index): DnsRecord => ({
        name: NAME,
        type: 'A',
        data: `10.${index >> 16}.${(index >> 8) & 255}.${index & 255}`,
      }),
    );
    let read = 0;
    const observed = new Proxy(records, {
      get(target, property, receiver) {
        if (typeof property === 'string' && /^\d+$/.test(property)) read += 1;
        return Reflect.get(target, property, receiver) as unknown;
      },
    });
    const fits = 78;
    for (const type of ['A', 'AAAA', 'SRV', 'ANY']) {
      const zone = {
        clusterDomain: 'cluster.local',
        isSynced: true,
        serial: 1,
        lookup: () => observed,
      };
      const query = readQuery(queryBytes(NAME, type));
      assert.ok(query !== undefined && 'name' in query);
      read = 0;
      const answer = answerFromZone(query, authority(zone), fits);
      if (type === 'A') assert.equal(answer?.answers.length, fits);
      assert.ok(read <= 3 * fits, `${type}: ${read} records`);
    }
  });
});
