import assert from 'node:assert/strict';
import type { MapElement } from '../../nftables/element.ts';
import type { MapName } from '../../nftables/maps.ts';
import { phasesOf } from '../../nftables/phases.ts';

describe('phases: transactions of a change', () => {
  const element = (map: MapName, ...bytes: number[]): MapElement => ({
    map,
    key: Buffer.from(bytes),
    keyEnd: Buffer.from(bytes),
  });
  const phases = (adds: readonly MapElement[], deletes: readonly MapElement[]) => {
    const diff = { chains: [], routes: [], adds, deletes, cleanup: [] };
    const { prepare, commit } = phasesOf(diff, 'IPv4');
    const maps = (elements: readonly MapElement[]) => elements.map(({ map }) => map);
    return [prepare, commit].map((phase) => [maps(phase.deletes), maps(phase.adds)]);
  };

  it('change allowed sources first, because new chains look them up', () => {
    const vip = element('service-ports', 10, 0, 0, 1);
    const range = element('allowed-ranges', 10, 0, 0, 1);
    assert.deepEqual(phases([range, vip], []), [
      [[], ['allowed-ranges']],
      [[], ['service-ports']],
    ]);
  });

  it('change the slices and the address of a new owner at once: its first answer leaves as the VIP', () => {
    const owner = element('udp-owners-1', 10, 0, 0, 1, 0, 0, 0, 0);
    const [vips, ports] = [element('udp-owner-vips-2', 10), element('udp-owner-ports-2', 10)];
    const all = [owner, vips, ports, element('owned-addresses', 10)];
    assert.deepEqual(phases(all, [owner]), [
      [[], []],
      [['udp-owners-1'], all.map(({ map }) => map)],
    ]);
  });

  it('fill ports that no packet finds yet, in transactions of their own', () => {
    const slot = [10, 0, 0, 1, 1, 0, 0, 0];
    const range = element('vip-ranges-1', ...slot, 6, 0, 0, 0, 0, 80, 0, 0);
    const service = element('range-services', ...slot);
    const diff = { chains: [], routes: [], adds: [range, service], deletes: [], cleanup: [] };
    const { fill, commit } = phasesOf(diff, 'IPv4');
    assert.deepEqual([fill, commit.adds], [[range], [service]]);
    // The Service that had the slot has ports until the commit.
    const changed = phasesOf({ ...diff, deletes: [service] }, 'IPv4');
    assert.deepEqual([changed.fill, changed.commit.adds], [[], [range, service]]);
  });

  it('delete the ports of a slot before another Service has it', () => {
    const slot = [10, 0, 0, 1, 1, 0, 0, 0];
    const range = element('vip-ranges-1', ...slot, 6, 0, 0, 0, 0, 80, 0, 0);
    const service = element('range-services', ...slot);
    const diff = { chains: [], routes: [], adds: [service], deletes: [service], cleanup: [range] };
    assert.deepEqual(phasesOf(diff, 'IPv4').commit.deletes, [service, range]);
    // Packets may still look them up if the slot is withdrawn later.
    const deleted = phasesOf({ ...diff, adds: [] }, 'IPv4');
    assert.deepEqual([deleted.withdraw.deletes, deleted.cleanup.deletes], [[service], [range]]);
  });
});
