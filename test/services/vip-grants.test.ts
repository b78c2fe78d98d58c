import assert from 'node:assert/strict';
import { VipGrants } from '../../services/vip-grants.ts';
import type { VipRequest } from '../../services/vip-requests.ts';

const VIP = '198.51.100.1';

/** `count` Services that list the same ports on one address, the oldest first, and how often priorities were read. */
function sharedPorts(services: number, ports: number) {
  const work = { reads: 0 };
  const request = (age: number, port: number): VipRequest => ({
    vip: VIP,
    id: `shared/s${age}:${port}`,
    match: { kind: 'port', protocol: 'TCP', port },
    field: 'spec.externalIPs',
    serviceKey: `shared/s${age}`,
    family: 'IPv4',
    isOwned: false,
    get priority() {
      work.reads++;
      return `${String(age).padStart(4, '0')} shared/s${age}:${port}`;
    },
  });
  const requests = Array.from({ length: services }, (_, age) =>
    Array.from({ length: ports }, (__, index) => request(age, index + 1)),
  );
  return { work, requests };
}

describe('vip-grants: work of a change', () => {
  const PORTS = 40;
  const SERVICES = 50;

  for (const [title, change] of [
    ['releases', (grants, oldest) => grants.replace(oldest, [])],
    ['takes back', (grants, oldest) => grants.replace([], oldest)],
  ] as const satisfies readonly [
    string,
    (grants: VipGrants, oldest: readonly VipRequest[]) => unknown,
  ][]) {
    it(`is a few comparisons for each request when the oldest of many Services ${title} its ports`, () => {
      const { work, requests } = sharedPorts(SERVICES, PORTS);
      const grants = new VipGrants();
      const [oldest = [], second = [], ...younger] = requests;
      for (const each of requests) grants.replace([], each);
      if (title === 'takes back') grants.replace(oldest, []);
      work.reads = 0;
      change(grants, oldest);
      assert.ok(work.reads <= 8 * SERVICES * PORTS, `${work.reads} reads of a priority`);
      const winner = title === 'takes back' ? oldest : second;
      for (const loser of younger)
        assert.deepEqual(
          loser.map((each) => grants.winnerOver(each)),
          winner,
        );
    });
  }

  it('does not grow with the Services that already lost when another one loses', () => {
    const reads = [10, 80].map((services) => {
      const { work, requests } = sharedPorts(services + 1, PORTS);
      const grants = new VipGrants();
      const last = requests.pop() ?? [];
      for (const each of requests) grants.replace([], each);
      work.reads = 0;
      grants.replace([], last);
      grants.replace(last, []);
      return work.reads;
    });
    // Binary searches only.
    assert.ok((reads[1] ?? 0) < 2 * (reads[0] ?? 0), `${reads}`);
  });
});
