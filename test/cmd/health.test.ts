import assert from 'node:assert/strict';
import { proxyHealth } from '../../cmd/health.ts';

describe('the health of the agent', () => {
  it('is bad when something has been queued for two sync periods', () => {
    let elapsed = 0;
    const health = proxyHealth(
      { syncPeriod: 30_000, needsNode: false, missingInputs: () => [] },
      { wall: () => new Date(elapsed), elapsed: () => elapsed },
    );
    health.updated('IPv4');
    health.queued('IPv4');
    elapsed = 59_999;
    assert.equal(health.report().healthy, true);
    elapsed = 60_000;
    assert.equal(health.report().healthy, false);
    health.updated('IPv4');
    assert.equal(health.report().healthy, true);
  });
});
