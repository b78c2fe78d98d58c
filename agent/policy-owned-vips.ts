/** Tells network policy the VIPs of Services with ports owned by pods. */
import type { ObjectKey } from '../api/objects.ts';
import type { ObjectSink } from '../sources/source.ts';

/**
 * A sink that collects the VIPs that owners of ports can have as their source address. Includes Services
 * whose annotation is refused: no owner sends from their VIPs.
 * @param onChange Receives all VIPs after each change.
 */
export function ownedVipsSink(onChange: (vips: ReadonlySet<string>) => void): ObjectSink {
  const vipsByService = new Map<ObjectKey, readonly string[]>();
  const changed = () => onChange(new Set([...vipsByService.values()].flat()));
  const remove = (key: ObjectKey) => {
    if (vipsByService.delete(key)) changed();
  };
  return {
    upsert(object) {
      if (object.kind !== 'Service') return;
      if (object.ownedPortsAnnotation === undefined) {
        remove(object.key);
        return;
      }
      const ingress = object.loadBalancerIngress.filter(({ ipMode }) => ipMode === 'VIP');
      vipsByService.set(object.key, [...object.clusterIPs, ...ingress.map(({ ip }) => ip)]);
      changed();
    },
    remove(kind, key) {
      if (kind === 'Service') remove(key);
    },
    synced() {},
  };
}
