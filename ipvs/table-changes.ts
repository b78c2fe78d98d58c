/** Changes of the IPVS table: from items, and as text. */
import type { IpvsChange } from '../netlink/ipvs/ipvs.ts';
import { destinationText, type IpvsItem, serviceText } from './items.ts';

/** Describes a change, for example `add-destination TCP 10.96.0.1:80 > 10.244.0.9:8080`. */
export function changeText(change: IpvsChange): string {
  const { op, key } = change;
  const what =
    'destination' in change ? destinationText(key, change.destination) : serviceText(key);
  return `${op} ${what}`;
}

/** Whether a change deletes its object or sets weight 0, so that a missing object is no error. */
export function isTeardown(change: IpvsChange): boolean {
  if (change.op === 'edit-destination') return change.destination.weight === 0;
  return change.op === 'delete-service' || change.op === 'delete-destination';
}

export function tableChange(
  item: Extract<IpvsItem, { kind: 'service' | 'destination' }>,
  op: 'add' | 'remove',
): IpvsChange {
  const key = item.service;
  if (item.kind === 'service') {
    return op === 'add'
      ? { op: 'add-service', key, config: item.config }
      : { op: 'delete-service', key };
  }
  return op === 'add'
    ? { op: 'add-destination', key, destination: { ...item.destination, weight: 1 } }
    : { op: 'delete-destination', key, destination: item.destination };
}
