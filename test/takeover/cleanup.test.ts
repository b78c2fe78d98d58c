import assert from 'node:assert/strict';
import { allCleanupSteps } from '../../takeover/cleanup.ts';
import { CleanupAttempt } from '../../takeover/cleanup-attempt.ts';

/** Records parts, and removes none. */
class Listing extends CleanupAttempt {
  readonly parts: string[] = [];

  override async remove(part: string): Promise<void> {
    this.parts.push(part);
  }
}

describe('cleanup: steps', () => {
  it('removes the device first, and IPVS and its sets after the rules that reference them', async () => {
    const listing = new Listing();
    for (const step of allCleanupSteps([])) await step(listing);
    assert.deepEqual(listing.parts, [
      'device kube-ipvs0',
      'iptables-nft',
      'iptables-legacy',
      'nf_tables, IPv4',
      'ip6tables-nft',
      'ip6tables-legacy',
      'nf_tables, IPv6',
      'network policy',
      'network policy, DNS',
      'IPVS',
      'ipset',
    ]);
  });
});
