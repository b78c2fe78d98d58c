import assert from 'node:assert/strict';
import { elementOwners } from '../../nftables/element-owners.ts';
import { route } from '../fixtures.ts';

describe('element owners: Services of unexpected elements', () => {
  it('stops looking when the clients of the comparison are gone', async () => {
    const until = performance.now() + 1000;
    const plan = {
      *appliedRoutes() {
        while (performance.now() < until) yield route();
      },
    };
    const gone = AbortSignal.abort(new Error('gone'));
    await assert.rejects(elementOwners(plan, [], 'IPv4', gone), /gone/);
  });
});
