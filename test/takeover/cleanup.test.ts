import assert from 'node:assert/strict';
import { allLeftovers } from '../../takeover/cleanup.ts';
import { CleanupAttempt } from '../../takeover/cleanup-attempt.ts';

/** Hears of parts, and removes none. */
class Listing extends CleanupAttempt {
  readonly parts: string[] = [];

  override async remove(part: string): Promise<void> {
    this.parts.push(part);
  }
}

describe('cleanup', () => {
  it('begins with the device, and comes to IPVS and its sets when no rule names them', async () => {
    const listing = new Listing();
    for (const leftover of allLeftovers([])) await leftover(listing);
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
