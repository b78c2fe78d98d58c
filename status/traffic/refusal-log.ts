/**
 * Logs packets that Services refuse, while a client looks. Refused packets never get a conntrack entry. Tables of
 * another name, which the kernel deletes with the socket, log them just before the rules of the proxy mode refuse
 * them. The rules of the agent do not change.
 */
import type { IpFamily } from '../../api/objects.ts';
import { NetlinkError } from '../../netlink/core/error.ts';
import { LogGroup, type LoggedPacket } from '../../netlink/nflog/log-group.ts';
import { baseAt, PRIORITY } from '../../netlink/nftables/hooks.ts';
import { type OwnedChain, OwnedTables } from '../../netlink/nftables/owned-table.ts';
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
import type { RefusalMode } from './refusal-keys.ts';
import { FamilyErrors, RefusalSets, widthOf } from './refusal-sets.ts';
import type { ServiceIndex } from './service-index.ts';

/** Name of the tables in families ip and ip6. */
export const FLOWS_TABLE = 'portwide-flows';
/** NFLOG groups to try. */
const GROUPS = [20_104, 20_105, 20_106, 20_107] as const;
/** Packets a second of one hook, and the burst. */
const RATE = 200;
const BURST = 200;
/** Just before the filter rules of modes nftables and iptables. */
const TRANSLATED = {
  hooks: ['input', 'forward', 'output'],
  priority: PRIORITY.filter - 1,
} as const;
/** Just before the rules of mode ipvs in table mangle, which drop packets. Others reject packets in table filter. */
const UNTRANSLATED = { hooks: ['prerouting', 'output'], priority: PRIORITY.mangle - 1 } as const;
/** Offset of the destination address in the IP header. */
const DESTINATION: Readonly<Record<IpFamily, number>> = { IPv4: 16, IPv6: 24 };
/** The tables and the log group. */
export class RefusalLog {
  readonly #tables: OwnedTables;
  readonly #group: LogGroup;
  readonly #sets: RefusalSets;
  readonly #mode: RefusalMode;
  #failure: FamilyErrors | undefined;

  private constructor(group: LogGroup, index: ServiceIndex, mode: RefusalMode) {
    this.#tables = new OwnedTables(FLOWS_TABLE);
    this.#group = group;
    this.#mode = mode;
    this.#sets = new RefusalSets(this.#tables, index, mode);
  }

  /**
   * Starts to log.
   * @throws NetlinkError if the kernel has no NFLOG or another program receives all groups; FamilyErrors if no family
   * can be logged: UnsupportedError without nf_tables or before Linux 5.12, NftRefusedError.
   */
  static async open(
    families: readonly IpFamily[],
    index: ServiceIndex,
    mode: RefusalMode,
  ): Promise<RefusalLog> {
    const { group, number } = bindFree(GROUPS);
    const opened = new RefusalLog(group, index, mode);
    const errors = new Map<IpFamily, unknown>();
    for (const family of families) {
      try {
        await opened.#create(family, number);
      } catch (error) {
        errors.set(family, error);
      }
    }
    if (errors.size === 0) return opened;
    opened.#failure = new FamilyErrors(errors);
    if (errors.size < families.length) return opened;
    await opened.close();
    throw opened.#failure;
  }

  /** Why packets of a family are not logged; undefined if all are. */
  get failure(): Error | undefined {
    return this.#failure;
  }

  /** Number of packets that did not fit into the receive buffer. */
  get dropped(): number {
    return this.#group.dropped;
  }

  /** Reads logged packets, see `LogGroup.read`. */
  read(onPacket: (packet: LoggedPacket) => void): boolean {
    return this.#group.read(onPacket);
  }

  /** See `RefusalSets.refresh`. */
  refresh(): Promise<void> {
    return this.#sets.refresh();
  }

  /** Stops to log; deletes the tables. */
  async close(): Promise<void> {
    this.#group.close();
    const refreshed = this.#sets.close();
    await this.#tables.close();
    await refreshed;
  }

  async #create(family: IpFamily, group: number): Promise<void> {
    await this.#sets.create(family, (sets) =>
      this.#tables.create(family, sets, chains(family, group, this.#mode)),
    );
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

/** One chain a hook: it logs untranslated first packets that the agent's rules may refuse. */
function chains(family: IpFamily, group: number, { mayBeTranslated }: RefusalMode): OwnedChain[] {
  const logged = [limit(RATE, BURST), log(group, 'portwide refused')];
  const destination = payload(0, PAYLOAD_BASE.network, DESTINATION[family], widthOf(family));
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
    return { name: hook, base: baseAt('filter', hook, priority), rules };
  });
}
