import assert from 'node:assert/strict';
import { type Item, STAGES, stageOf } from '../../ipvs/items.ts';
import { SET_NAMES, type SetName } from '../../ipvs/sets.ts';

const service = { kind: 'mark', family: 'IPv4', mark: 0x1002 } as const;
const config = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
const STAGE = {
  service: stageOf({ kind: 'service', service, config }),
  destination: stageOf({
    kind: 'destination',
    service,
    destination: { address: '10.244.0.1', port: 0 },
  }),
  address: stageOf({ kind: 'address', address: '10.96.0.1' }),
};
const ofSet = (set: SetName) => stageOf({ kind: 'entry', set, entry: {} } satisfies Item);

/** What comes later, and so goes earlier. */
function precedes(stage: number, ...later: readonly number[]): void {
  for (const each of later) assert.ok(stage < each, `${stage} < ${each}`);
}

describe('items come into being in an order in which', () => {
  it('a mark is on record before there is a service of it', () => {
    precedes(ofSet('KUBE-MARKS'), STAGE.service, STAGE.destination);
  });

  it('who may use a VIP is known before anybody is asked, and that before packets are taken', () => {
    precedes(ofSet('KUBE-LOAD-BALANCER-SOURCE-CIDR'), ofSet('KUBE-LOAD-BALANCER-FW'));
    precedes(ofSet('KUBE-LOAD-BALANCER-SOURCE-IP'), ofSet('KUBE-LOAD-BALANCER-FW'));
    precedes(ofSet('KUBE-PORT-RANGES-SOURCE'), ofSet('KUBE-PORT-RANGES-FW'));
    precedes(ofSet('KUBE-ALL-PORTS-SOURCE'), ofSet('KUBE-ALL-PORTS-FW'));
    for (const set of ['LOAD-BALANCER', 'PORT-RANGES', 'ALL-PORTS'] as const) {
      precedes(ofSet(`KUBE-${set}-FW`), STAGE.destination);
    }
  });

  it('hairpins and node ports are masqueraded before a destination takes a packet', () => {
    for (const set of SET_NAMES.filter((name) => /LOOP-BACK|^KUBE-NODE-PORT/.test(name))) {
      precedes(ofSet(set), STAGE.destination);
    }
  });

  it('no packet passes the filter before there is a service, nor is marked for one', () => {
    const passing: SetName[] = [
      'KUBE-CLUSTER-IP',
      'KUBE-LOAD-BALANCER',
      'KUBE-EXTERNAL-IP',
      'KUBE-EXTERNAL-IP-LOCAL',
      'KUBE-ALL-PORTS',
      'KUBE-PORT-RANGES',
      'KUBE-INSIDE-ALL-PORTS',
      'KUBE-INSIDE-PORT-RANGES',
      'KUBE-INSIDE-PORTS',
    ];
    for (const set of passing) precedes(STAGE.destination, ofSet(set));
  });

  it('an address attracts packets last of all', () => {
    for (const set of SET_NAMES) precedes(ofSet(set), STAGE.address);
    assert.equal(STAGE.address, STAGES - 1);
  });
});
