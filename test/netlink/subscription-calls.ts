/** Methods of the namespace helper: conntrack events, log groups and owned tables. */
import { visitConntrack } from '../../netlink/conntrack/conntrack.ts';
import type { DetailedEntry } from '../../netlink/conntrack/entry.ts';
import {
  type ConntrackEventOptions,
  ConntrackEvents,
  type EventSelection,
} from '../../netlink/conntrack/events.ts';
import { LogGroup } from '../../netlink/nflog/log-group.ts';
import { baseAt } from '../../netlink/nftables/hooks.ts';
import { OwnedTables } from '../../netlink/nftables/owned-table.ts';
import {
  encodeRule,
  limit,
  log,
  lookup,
  PAYLOAD_BASE,
  payload,
} from '../../netlink/nftables/rule.ts';

/** An entry is valid only during the call. */
const copyOf = (entry: DetailedEntry): DetailedEntry => ({
  family: entry.family,
  protocol: entry.protocol,
  origSrc: entry.origSrc,
  origDst: entry.origDst,
  origSrcPort: entry.origSrcPort,
  origDstPort: entry.origDstPort,
  replySrc: entry.replySrc,
  replyDst: entry.replyDst,
  replySrcPort: entry.replySrcPort,
  replyDstPort: entry.replyDstPort,
  id: entry.id,
  zone: entry.zone,
  status: entry.status,
  details: structuredClone(entry.details),
});

let events: ConntrackEvents | undefined;
let group: LogGroup | undefined;
let tables: OwnedTables | undefined;

export const subscriptionCalls = {
  async openEvents(options: ConntrackEventOptions): Promise<void> {
    events = new ConntrackEvents(options);
  },

  /** The waiting events, about `atMost`, and how many were dropped so far. */
  async readEvents(atMost?: number) {
    const read: { kind: string; entry: DetailedEntry }[] = [];
    while (events?.read((kind, entry) => read.push({ kind, entry: copyOf(entry) }), atMost));
    return { read, dropped: events?.dropped };
  },

  async sampleEvents(oneOf: number): Promise<void> {
    events?.sample(oneOf);
  },

  async selectEvents(selection: EventSelection | undefined): Promise<void> {
    events?.select(selection);
  },

  async closeEvents(): Promise<void> {
    events?.close();
  },

  async visitDetailed(translatedOnly: boolean): Promise<DetailedEntry[]> {
    const entries: DetailedEntry[] = [];
    await visitConntrack({ translatedOnly }, (entry) => entries.push(copyOf(entry)));
    return entries;
  },

  async bindGroup(number: number): Promise<void> {
    group = new LogGroup(number);
  },

  async readGroup() {
    const packets: { prefix: string; bytes: string }[] = [];
    group?.read(({ prefix, bytes }) => packets.push({ prefix, bytes: bytes.toString('hex') }));
    return packets;
  },

  async closeGroup(): Promise<void> {
    group?.close();
  },

  /** Creates a table that logs packets to an IPv4 address, at most `rate` of them. */
  async createOwned(name: string, address: string, number: number, rate: number): Promise<void> {
    tables = new OwnedTables(name);
    const key = (text: string) => Buffer.from(text.split('.').map(Number));
    const rule = encodeRule([
      payload(0, PAYLOAD_BASE.network, 16, 4),
      lookup('vips', 0),
      limit(rate, rate),
      log(number, 'to a VIP'),
    ]);
    await tables.create(
      'IPv4',
      [{ name: 'vips', keyLength: 4, keys: [key('192.0.2.1')] }],
      [{ name: 'output', base: baseAt('filter', 'output', -1), rules: [rule] }],
    );
    await tables.change('IPv4', 'vips', [key(address)], [key('192.0.2.1')]);
    await tables.replace('IPv4', 'vips', []);
    await tables.replace('IPv4', 'vips', [key('192.0.2.2'), key(address)]);
  },

  async closeOwned(): Promise<void> {
    await tables?.close();
  },
};
