/** Counts what a change and a query visit, in a headless Service with many endpoints. */
import assert from 'node:assert/strict';
import type { EndpointSlice } from '../../api/objects.ts';
import { readQuery } from '../../dns/query.ts';
import type { DnsRecord } from '../../dns/records.ts';
import { answerFromZone } from '../../dns/zone-answer.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { authority, queryBytes } from './messages.ts';
import { zoneWith } from './zone-fixtures.ts';

const HEADLESS = service({ headless: true, clusterIPs: [] });
const NAME = 'web.default.svc.cluster.local';
const SLICES = 100;
const PER_SLICE = 20;

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
