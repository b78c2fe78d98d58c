/**
 * Logs packets that Services refuse, while a client looks. Refused packets never get a conntrack entry. Tables of
 * another name, which the kernel deletes with the socket, log them just before the rules of the proxy mode refuse
 * them. The rules of the agent do not change.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { addressBytes } from '../../netlink/core/address.ts';
import { NetlinkError } from '../../netlink/core/error.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import { LogGroup } from '../../netlink/nflog/log-group.ts';
import { type OwnedChain, type OwnedSet, OwnedTables } from '../../netlink/nftables/owned-table.ts';
import {
  encodeRule,
  limit,
  log,
  lookup,
  META_KEY,
  meta,
  type NftExpression,
  PAYLOAD_BASE,
  payload,
  type Register,
} from '../../netlink/nftables/rule.ts';
import { HAS_NO_DNAT, IS_NEW } from '../../nft/rule.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { mayRefuse } from './refusal.ts';
import type { ServiceIndex } from './service-index.ts';

/** Name of the tables in families ip and ip6. */
const TABLE = 'portwide-flows';
/** NFLOG groups to try. */
const GROUPS = [20_104, 20_105, 20_106, 20_107] as const;
/** Packets a second of one hook, and the burst. */
const RATE = 200;
const BURST = 200;
/** Just before the filter rules of modes nftables and iptables. */
const TRANSLATED = { hooks: ['input', 'forward', 'output'], priority: -1 } as const;
/** Just before the rules of mode ipvs in table mangle, which drop packets. Others reject packets in table filter. */
const UNTRANSLATED = { hooks: ['prerouting', 'output'], priority: -151 } as const;
/**
 * VIPs with a Route that may refuse packets, and node ports of such Routes. `listed-vips`, only in mode ipvs: other VIPs,
 * whose packets to all ports but `served-ports` are refused. VIPs with port ranges are left out.
 */
const SETS = ['vips', 'node-ports', 'served-ports', 'listed-vips'] as const;
type SetName = (typeof SETS)[number];
/** Offset of the destination address in the IP header. */
const DESTINATION: Readonly<Record<IpFamily, number>> = { IPv4: 16, IPv6: 24 };
/** Bytes of an address. */
const WIDTH: Readonly<Record<IpFamily, number>> = { IPv4: 4, IPv6: 16 };

type Keys = Readonly<Record<SetName, ReadonlySet<string>>>;
/** Bytes of a protocol or port in a concatenated key. */
const FIELD = 4;

/** The tables and the log group. */
export class RefusalLog {
  readonly #tables: OwnedTables;
  readonly #group: LogGroup;
  readonly #families: readonly IpFamily[];
  readonly #index: ServiceIndex;
  readonly #mode: { readonly mayBeTranslated: boolean };
  readonly #keys = new Map<IpFamily, Keys>();
  #changes = -1;

  private constructor(
    group: LogGroup,
    families: readonly IpFamily[],
    index: ServiceIndex,
    mode: { readonly mayBeTranslated: boolean },
  ) {
    this.#tables = new OwnedTables(TABLE);
    this.#group = group;
    this.#families = families;
    this.#index = index;
    this.#mode = mode;
  }

  /**
   * Starts to log.
   * @throws NetlinkError if the kernel has no NFLOG or another program receives all groups; UnsupportedError without
   * nf_tables or before Linux 5.12; NftRefusedError.
   */
  static async open(
    families: readonly IpFamily[],
    index: ServiceIndex,
    mode: { readonly mayBeTranslated: boolean },
  ): Promise<RefusalLog> {
    const { group, number } = bindFree(GROUPS);
    const opened = new RefusalLog(group, families, index, mode);
    try {
      for (const family of families) await opened.#create(family, number);
      return opened;
    } catch (error) {
      await opened.close();
      throw error;
    }
  }

  /** Number of packets that did not fit into the receive buffer. */
  get dropped(): number {
    return this.#group.dropped;
  }

  /** Reads logged packets, see `LogGroup.read`. */
  read(onPacket: (bytes: Buffer) => void): boolean {
    return this.#group.read(({ bytes }) => onPacket(bytes));
  }

  /** Updates the VIPs and node ports if Routes have changed. @throws NftRefusedError; NetlinkError */
  async refresh(): Promise<void> {
    if (this.#changes === this.#index.changes) return;
    this.#changes = this.#index.changes;
    for (const family of this.#families) {
      const before = this.#keys.get(family);
      const after = await keysOf(this.#index, family, this.#mode);
      for (const set of SETS) {
        const added = [...after[set]].filter((key) => before?.[set].has(key) !== true);
        const deleted = [...(before?.[set] ?? [])].filter((key) => !after[set].has(key));
        await this.#tables.change(family, set, added.map(keyBytes), deleted.map(keyBytes));
      }
      this.#keys.set(family, after);
    }
  }

  /** Stops to log; deletes the tables. */
  async close(): Promise<void> {
    this.#group.close();
    await this.#tables.close();
  }

  async #create(family: IpFamily, group: number): Promise<void> {
    this.#changes = this.#index.changes;
    const keys = await keysOf(this.#index, family, this.#mode);
    this.#keys.set(family, keys);
    const width = WIDTH[family];
    const lengths: Readonly<Record<SetName, number>> = {
      vips: width,
      'node-ports': 2 * FIELD,
      'served-ports': width + 2 * FIELD,
      'listed-vips': width,
    };
    const sets = SETS.map(
      (name): OwnedSet => ({
        name,
        keyLength: lengths[name],
        keys: [...keys[name]].map(keyBytes),
      }),
    );
    await this.#tables.create(family, sets, chains(family, group, this.#mode));
  }
}

function bindFree(numbers: readonly number[]): { group: LogGroup; number: number } {
  let failure: unknown;
  for (const number of numbers) {
    try {
      return { group: new LogGroup(number), number };
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      failure = error;
    }
  }
  throw failure;
}

/** The keys of the sets, in hexadecimal. */
async function keysOf(
  index: ServiceIndex,
  family: IpFamily,
  mode: { readonly mayBeTranslated: boolean },
): Promise<Keys> {
  const keys = {
    vips: new Set<string>(),
    'node-ports': new Set<string>(),
    'served-ports': new Set<string>(),
    'listed-vips': new Set<string>(),
  };
  const slice = new TimeSlice();
  for (const vip of [...index.vips]) {
    if (slice.isOver()) await slice.yield();
    if (familyOf(vip) !== family) continue;
    const routes = index.routesOf(vip);
    const address = addressBytes(vip).toString('hex');
    if (routes.some((route) => mayRefuse(route, mode))) keys.vips.add(address);
    else if (routes.length > 0 && routes.every(({ match }) => match.kind === 'port')) {
      keys['listed-vips'].add(address);
      for (const { match } of routes) {
        if (match.kind !== 'port') continue;
        keys['served-ports'].add(`${address}${portKey(match)}`);
      }
    }
  }
  for (const route of [...index.nodePorts(family)]) {
    if (slice.isOver()) await slice.yield();
    const { match, nodePort } = route;
    if (match.kind !== 'port' || !mayRefuse(route, mode)) continue;
    keys['node-ports'].add(portKey({ protocol: match.protocol, port: nodePort }));
  }
  return keys;
}

function portKey({ protocol, port }: { readonly protocol: Protocol; readonly port: number }) {
  const key = Buffer.alloc(2 * FIELD);
  key.writeUInt8(protocolNumbers[protocol]);
  key.writeUInt16BE(port, FIELD);
  return key.toString('hex');
}

function keyBytes(hex: string): Buffer {
  return Buffer.from(hex, 'hex');
}

/** One chain a hook: it logs untranslated first packets that the agent's rules may refuse. */
function chains(
  family: IpFamily,
  group: number,
  { mayBeTranslated }: { readonly mayBeTranslated: boolean },
): OwnedChain[] {
  const logged = [limit(RATE, BURST), log(group, 'portwide refused')];
  const width = WIDTH[family];
  const destination = payload(0, PAYLOAD_BASE.network, DESTINATION[family], width);
  /** Loads protocol and destination port into two registers of four bytes each. */
  const protocolAndPort = (register: Register) => [
    meta(register, META_KEY.protocol),
    payload(register + 1, PAYLOAD_BASE.transport, 2, 2),
  ];
  const isVip = [destination, lookup('vips', 0)];
  const isOtherPort = [
    destination,
    lookup('listed-vips', 0),
    ...protocolAndPort(family === 'IPv4' ? 1 : 4),
    lookup('served-ports', 0, true),
  ];
  const isNodePort = [...protocolAndPort(0), lookup('node-ports', 0)];
  const rule = (match: readonly NftExpression[]) =>
    encodeRule([...IS_NEW.expressions, ...HAS_NO_DNAT.expressions, ...match, ...logged]);
  const { hooks, priority } = mayBeTranslated ? UNTRANSLATED : TRANSLATED;
  return hooks.map((hook) => {
    const isIncoming = hook === 'input' || hook === 'prerouting';
    const rules = [rule(isVip), rule(isOtherPort), ...(isIncoming ? [rule(isNodePort)] : [])];
    return { name: hook, hook, priority, rules };
  });
}
