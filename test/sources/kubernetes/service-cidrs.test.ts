import assert from 'node:assert/strict';
import { SERVICE_CIDRS, servingResources } from '../../../sources/kubernetes/resources.ts';
import { until } from '../recording-sink.ts';
import { SourceFixture, service } from './source-fixture.ts';

const FORBIDDEN = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
const GRANT = 'grant the agent\'s ClusterRole "list" and "watch" on servicecidrs';
const cidr = {
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata: { name: 'kubernetes' },
  spec: { cidrs: ['10.96.0.0/16'] },
};

describe('reflector: ServiceCIDRs', () => {
  let fixture: SourceFixture;
  beforeEach(async () => {
    fixture = new SourceFixture({ resources: [...servingResources('node-1'), SERVICE_CIDRS] });
    await fixture.double.listen();
    fixture.double.put(service('a', 1), cidr);
  });
  afterEach(() => fixture.stop());
  const forbidden = () =>
    fixture.logged.filter((line) => /^ServiceCIDR: (forbidden|CRD)/.test(line));
  const has = () => fixture.sink.objects.has('ServiceCIDR kubernetes');

  it('start without them while they may not be listed, and reads them once they may', async () => {
    fixture.double.fail({ resource: 'servicecidrs', fault: FORBIDDEN, times: 3 });
    fixture.start();
    await fixture.started;
    assert.deepEqual(fixture.notInstalled, ['ServiceCIDR']);
    await until('they are listed', has);
    assert.deepEqual(forbidden(), [
      'ServiceCIDR: forbidden; going on without, and checking again periodically',
    ]);
    assert.deepEqual(fixture.hints, [GRANT]);
  });

  it('are not used any longer when the right to list them is gone', async () => {
    await fixture.startAndWatch(['services', 'servicecidrs']);
    await until('they are listed', has);
    fixture.double.fail({ resource: 'servicecidrs', fault: FORBIDDEN, times: 1_000_000 });
    fixture.double.breakWatches('expire', 'servicecidrs');
    await until('they are not used', () => !has());
    await fixture.waitForServices({ a: 1 });
    assert.deepEqual(forbidden(), ['ServiceCIDR: forbidden; its objects are no longer used']);
    assert.deepEqual(fixture.hints, [GRANT]);
  });
});
