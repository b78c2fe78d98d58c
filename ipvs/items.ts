/**
 * The units of desired kernel state, compared one by one. Items with the same key are the same
 * kernel object; their values (a mark, a scheduler) may differ.
 */
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type {
  IpvsDestinationKey,
  IpvsServiceConfig,
  IpvsServiceKey,
} from '../netlink/ipvs/ipvs.ts';
import type { SetName } from './sets.ts';

export type IpvsItem =
  | {
      readonly kind: 'service';
      readonly service: IpvsServiceKey;
      readonly config: IpvsServiceConfig;
    }
  | {
      readonly kind: 'destination';
      readonly service: IpvsServiceKey;
      readonly destination: IpvsDestinationKey;
    }
  | { readonly kind: 'entry'; readonly set: SetName; readonly entry: IpsetEntry }
  /** A VIP, bound to the dummy device. */
  | { readonly kind: 'address'; readonly address: string };

export type EntryItem = Extract<IpvsItem, { kind: 'entry' }>;

/**
 * Order in which items are written; they are removed in reverse order. The items that a packet
 * needs last are written first.
 *
 * - record: a mark is recorded before a service uses it. If the agent is killed in between, the
 *   next agent recognises the service as its own. Allowed sources are written in this stage too.
 * - guard: source restrictions and masquerade entries exist before a destination can take a packet.
 * - entry and marking: entries that let packets through to IPVS follow the services.
 * - address: a VIP is bound last, when its packets are served or rejected.
 */
const STAGE = { record: 0, guard: 1, service: 2, destination: 3, entry: 4, marking: 5, address: 6 };
export const STAGES = 7;

export function stageOf(item: IpvsItem): number {
  return item.kind === 'entry' ? (SET_STAGE.get(item.set) ?? STAGE.entry) : STAGE[item.kind];
}

/** Whether an item is written before destinations, and so removed after they start draining. */
export function isWrittenBeforeDestinations(item: IpvsItem): boolean {
  return stageOf(item) < STAGE.destination;
}

const inStage = (stage: number, sets: readonly SetName[]) =>
  sets.map((set) => [set, stage] as const);

const SET_STAGE: ReadonlyMap<SetName, number> = new Map([
  ...inStage(STAGE.record, [
    'KUBE-MARKS',
    // Write allowed sources before the entries that restrict a VIP to them.
    'KUBE-LOAD-BALANCER-SOURCE-IP',
    'KUBE-LOAD-BALANCER-SOURCE-CIDR',
    'KUBE-PORT-RANGES-SOURCE',
    'KUBE-ALL-PORTS-SOURCE',
  ]),
  ...inStage(STAGE.guard, [
    'KUBE-LOAD-BALANCER-FW',
    'KUBE-PORT-RANGES-FW',
    'KUBE-ALL-PORTS-FW',
    'KUBE-LOOP-BACK',
    'KUBE-ALL-PORTS-LOOP-BACK',
    'KUBE-NODE-PORT-TCP',
    'KUBE-NODE-PORT-LOCAL-TCP',
    'KUBE-NODE-PORT-UDP',
    'KUBE-NODE-PORT-LOCAL-UDP',
    'KUBE-NODE-PORT-SCTP-HASH',
    'KUBE-NODE-PORT-LOCAL-SCTP-HASH',
  ]),
  ...inStage(STAGE.marking, [
    'KUBE-ALL-PORTS',
    'KUBE-PORT-RANGES',
    'KUBE-INSIDE-ALL-PORTS',
    'KUBE-INSIDE-PORT-RANGES',
    'KUBE-INSIDE-PORTS',
    'KUBE-ALL-PORTS-IPS',
    'KUBE-IPVS-IPS',
  ]),
]);

/**
 * Key of the service that an item belongs to. The service itself, its destinations and its mark
 * record belong to a service.
 */
export function serviceOf(item: IpvsItem): string | undefined {
  if (item.kind === 'service' || item.kind === 'destination') return serviceText(item.service);
  if (item.kind === 'entry' && item.set === 'KUBE-MARKS') return `FWM ${item.entry.mark}`;
  return undefined;
}

/**
 * Whether Portwide owns an IPVS service. A service with an address belongs to Portwide unless the
 * address is excluded, as in kube-proxy. A fwmark service belongs to Portwide if Portwide allocated
 * the mark.
 */
export function isOwnService(
  key: IpvsServiceKey,
  isOwnMark: (mark: number) => boolean,
  isExcluded: (address: string) => boolean,
): boolean {
  return key.kind === 'mark' ? isOwnMark(key.mark) : !isExcluded(key.address);
}

/** Identity of an item. */
export function itemKey(item: IpvsItem): string {
  switch (item.kind) {
    case 'service':
      return serviceText(item.service);
    case 'destination':
      return destinationText(item.service, item.destination);
    case 'entry':
      return entryText(item.set, item.entry);
    case 'address':
      return item.address;
  }
}

/** `TCP 10.96.0.1:80` or `FWM 4098`, as ipvsadm prints services; unique within a family. */
export function serviceText(key: IpvsServiceKey): string {
  return key.kind === 'mark' ? `FWM ${key.mark}` : `${key.protocol} ${key.address}:${key.port}`;
}

export function destinationText(
  service: IpvsServiceKey,
  { address, port }: IpvsDestinationKey,
): string {
  return `${serviceText(service)} > ${address}:${port}`;
}

export function entryText(set: SetName, entry: IpsetEntry): string {
  const { ip = '', protocol = '', port = '', portTo = '', ip2 = '', mark = '' } = entry;
  return `${set} ${ip} ${protocol} ${port}-${portTo} ${ip2} ${mark}`;
}

/** Whether two items with the same key have equal values. */
export function sameItem(a: IpvsItem, b: IpvsItem): boolean {
  if (a.kind === 'service' && b.kind === 'service') return sameConfig(a.config, b.config);
  if (a.kind === 'entry' && b.kind === 'entry') return sameEntry(a.entry, b.entry);
  return true;
}

export function sameConfig(a: IpvsServiceConfig, b: IpvsServiceConfig): boolean {
  return (
    a.scheduler === b.scheduler &&
    a.schedulerFlags === b.schedulerFlags &&
    a.persistenceSeconds === b.persistenceSeconds
  );
}

/** Whether two entries with the same key have equal values. */
export function sameEntry(a: IpsetEntry, b: IpsetEntry): boolean {
  return a.skbMark === b.skbMark && a.comment === b.comment;
}
