/** Tells network policy the VIPs of Services with ports owned by pods. */
import type { ObjectKey, Service } from '../api/objects.ts';
import type { ObjectSink } from '../sources/source.ts';

/** Called for a VIP from which owners of ports may send now, or no longer. */
type VipListener = (vip: string, isOwned: boolean) => void;

/**
 * A sink that reports the VIPs that owners of ports can have as their source address. Includes Services
 * whose annotation is refused: no owner sends from their VIPs.
 * @param onChange Called for each VIP that the first Service with owned ports requests or the last one releases.
 */
export function ownedVipsSink(onChange: VipListener): ObjectSink {
  const vipsByService = new Map<ObjectKey, ReadonlySet<string>>();
  /** Number of Services that request a VIP. */
  const requests = new Map<string, number>();
  const count = (vip: string, change: 1 | -1) => {
    const before = requests.get(vip) ?? 0;
    const now = before + change;
    if (now > 0) requests.set(vip, now);
    else requests.delete(vip);
    if (before === 0 || now === 0) onChange(vip, now > 0);
  };
  const replace = (key: ObjectKey, vips: ReadonlySet<string>) => {
    const before = vipsByService.get(key) ?? NO_VIPS;
    if (vips.size > 0) vipsByService.set(key, vips);
    else vipsByService.delete(key);
    for (const vip of vips) if (!before.has(vip)) count(vip, 1);
    for (const vip of before) if (!vips.has(vip)) count(vip, -1);
  };
  return {
    upsert(object) {
      if (object.kind === 'Service') replace(object.key, vipsOfOwners(object));
    },
    remove(kind, key) {
      if (kind === 'Service') replace(key, NO_VIPS);
    },
    synced() {},
  };
}

const NO_VIPS: ReadonlySet<string> = new Set();

function vipsOfOwners(service: Service): ReadonlySet<string> {
  const { ownedPortsAnnotation, clusterIPs, loadBalancerIngress } = service;
  if (ownedPortsAnnotation === undefined) return NO_VIPS;
  const ingress = loadBalancerIngress.filter(({ ipMode }) => ipMode === 'VIP');
  return new Set([...clusterIPs, ...ingress.map(({ ip }) => ip)]);
}
