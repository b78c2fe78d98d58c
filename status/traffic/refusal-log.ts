/**
 * Logs packets that Services refuse, while a client looks. Refused packets never get a conntrack entry. Tables of
 * another name, which the kernel deletes with the socket, log them just before the rules of the proxy mode refuse
 * them. The rules of the agent do not change.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
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
/** Just before the filter rules of every mode. */
const PRIORITY = -1;
const HOOKS = ['input', 'forward', 'output'] as const;
const VIPS = 'vips';
const NODE_PORTS = 'node-ports';
/** Offset of the destination address in the IP header. */
const DESTINATION: Readonly<Record<IpFamily, number>> = { IPv4: 16, IPv6: 24 };

type Keys = Readonly<Record<typeof VIPS | typeof NODE_PORTS, ReadonlySet<string>>>;

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
   * @throws NetlinkError if the kernel has no NFLOG or another program receives all groups; NftRefusedError before Linux
   * 5.12.
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
      for (const set of [VIPS, NODE_PORTS] as const) {
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
    const set = (name: keyof Keys, keyLength: number): OwnedSet => ({
      name,
      keyLength,
      keys: [...keys[name]].map(keyBytes),
    });
    const sets = [set(VIPS, family === 'IPv4' ? 4 : 16), set(NODE_PORTS, 8)];
    await this.#tables.create(family, sets, chains(family, group));
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

/** VIPs and node ports whose packets may be refused, as hexadecimal keys. */
async function keysOf(
  index: ServiceIndex,
  family: IpFamily,
  mode: { readonly mayBeTranslated: boolean },
): Promise<Keys> {
  const vips = new Set<string>();
  const slice = new TimeSlice();
  for (const vip of [...index.vips]) {
    if (familyOf(vip) === family && index.routesOf(vip).some((route) => mayRefuse(route, mode))) {
      vips.add(addressBytes(vip).toString('hex'));
    }
    if (slice.isOver()) await slice.yield();
  }
  const nodePorts = new Set<string>();
  for (const route of [...index.nodePorts(family)]) {
    if (route.match.kind !== 'port' || !mayRefuse(route, mode)) continue;
    const key = Buffer.alloc(8);
    key.writeUInt8(protocolNumbers[route.match.protocol]);
    key.writeUInt16BE(route.nodePort, 4);
    nodePorts.add(key.toString('hex'));
    if (slice.isOver()) await slice.yield();
  }
  return { [VIPS]: vips, [NODE_PORTS]: nodePorts };
}

function keyBytes(hex: string): Buffer {
  return Buffer.from(hex, 'hex');
}

/** One chain a hook: new connections to a VIP or node port that were not translated are logged. */
function chains(family: IpFamily, group: number): OwnedChain[] {
  const logged = [limit(RATE, BURST), log(group, 'portwide refused')];
  const width = family === 'IPv4' ? 4 : 16;
  const isVip = [payload(0, PAYLOAD_BASE.network, DESTINATION[family], width), lookup(VIPS, 0)];
  const isNodePort = [
    meta(0, META_KEY.protocol),
    payload(1, PAYLOAD_BASE.transport, 2, 2),
    lookup(NODE_PORTS, 0),
  ];
  const rule = (match: readonly NftExpression[]) =>
    encodeRule([...IS_NEW.expressions, ...HAS_NO_DNAT.expressions, ...match, ...logged]);
  return HOOKS.map((hook) => ({
    name: hook,
    hook,
    priority: PRIORITY,
    rules: hook === 'input' ? [rule(isVip), rule(isNodePort)] : [rule(isVip)],
  }));
}
