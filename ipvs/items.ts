/**
 * What the kernel should hold, in pieces that can be compared one by one. Items with the same key
 * are the same thing; one may differ from another in its value (a mark, a scheduler).
 */
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type {
  IpvsDestinationKey,
  IpvsServiceConfig,
  IpvsServiceKey,
} from '../netlink/ipvs/ipvs.ts';
import type { SetName } from './sets.ts';

export type Item =
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
  /** Bound to the agent's dummy device. */
  | { readonly kind: 'address'; readonly address: string };

export type EntryItem = Extract<Item, { kind: 'entry' }>;

/**
 * The order in which items come into being, and, backwards, go: what a packet needs last is there
 * first. A mark is written down before there is a service of that mark, so that an agent that is
 * killed in between knows the service for its own. Who may use a VIP, and which connections are
 * masqueraded by the node's own address or by a pod's, is known before a destination can take
 * a packet. What is let through to IPVS comes after the services; an address is bound last, when
 * the packets that it attracts are served or rejected.
 */
const STAGE = { record: 0, guard: 1, service: 2, destination: 3, entry: 4, marking: 5, address: 6 };
export const STAGES = 7;

export function stageOf(item: Item): number {
  return item.kind === 'entry' ? (SET_STAGE.get(item.set) ?? STAGE.entry) : STAGE[item.kind];
}

/** Whether an item comes before the destinations, and so goes after they have begun to drain. */
export function precedesDestinations(item: Item): boolean {
  return stageOf(item) < STAGE.destination;
}

const inStage = (stage: number, sets: readonly SetName[]) =>
  sets.map((set) => [set, stage] as const);

const SET_STAGE: ReadonlyMap<SetName, number> = new Map([
  ...inStage(STAGE.record, [
    'KUBE-MARKS',
    // Sources before the sets that have them asked.
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

/** The service that an item goes with: itself, its destinations, the record of its mark. */
export function serviceOf(item: Item): string | undefined {
  if (item.kind === 'service' || item.kind === 'destination') return serviceText(item.service);
  if (item.kind === 'entry' && item.set === 'KUBE-MARKS') return `FWM ${item.entry.mark}`;
  return undefined;
}

/** Whether a service is Portwide's or, as kube-proxy takes it, may be: all but marks are. */
export function isOwnService(
  key: IpvsServiceKey,
  isOwnMark: (mark: number) => boolean,
  isExcluded: (address: string) => boolean,
): boolean {
  return key.kind === 'mark' ? isOwnMark(key.mark) : !isExcluded(key.address);
}

/** What an item is known by. */
export function itemKey(item: Item): string {
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

/** `TCP 10.96.0.1:80`, `FWM 4098`, as ipvsadm tells them apart; of one family. */
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

/** Whether two items of one key are the same in all. */
export function sameItem(a: Item, b: Item): boolean {
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

/** What follows from the key needs no comparison. */
export function sameEntry(a: IpsetEntry, b: IpsetEntry): boolean {
  return a.skbMark === b.skbMark && a.comment === b.comment;
}
