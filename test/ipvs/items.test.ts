import assert from 'node:assert/strict';
import { type IpvsItem, STAGES, stageOf } from '../../ipvs/items.ts';
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
const ofSet = (set: SetName) => stageOf({ kind: 'entry', set, entry: {} } satisfies IpvsItem);

/** Asserts that a stage is before others. */
function precedes(stage: number, ...later: readonly number[]): void {
  for (const each of later) assert.ok(stage < each, `${stage} < ${each}`);
}

describe('items: order of stages', () => {
  it('records a mark before its service', () => {
    precedes(ofSet('KUBE-MARKS'), STAGE.service, STAGE.destination);
  });

  it('adds allowed sources before entries that restrict a VIP, and restrictions before destinations', () => {
    precedes(ofSet('KUBE-LOAD-BALANCER-SOURCE-CIDR'), ofSet('KUBE-LOAD-BALANCER-FW'));
    precedes(ofSet('KUBE-LOAD-BALANCER-SOURCE-IP'), ofSet('KUBE-LOAD-BALANCER-FW'));
    precedes(ofSet('KUBE-PORT-RANGES-SOURCE'), ofSet('KUBE-PORT-RANGES-FW'));
    precedes(ofSet('KUBE-ALL-PORTS-SOURCE'), ofSet('KUBE-ALL-PORTS-FW'));
    for (const set of ['LOAD-BALANCER', 'PORT-RANGES', 'ALL-PORTS'] as const) {
      precedes(ofSet(`KUBE-${set}-FW`), STAGE.destination);
    }
  });

  it('adds masquerade entries of hairpins and node ports before destinations', () => {
    for (const set of SET_NAMES.filter((name) => /LOOP-BACK|^KUBE-NODE-PORT/.test(name))) {
      precedes(ofSet(set), STAGE.destination);
    }
  });

  it('adds entries that accept or mark packets after destinations', () => {
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

  it('binds addresses last', () => {
    for (const set of SET_NAMES) precedes(ofSet(set), STAGE.address);
    assert.equal(STAGE.address, STAGES - 1);
  });
});
