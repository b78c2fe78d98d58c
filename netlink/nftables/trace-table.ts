/**
 * The table that selects packets for the kernel's trace:
 *
 *   prerouting, output, before all others ─ select-*: meta nftrace set 1 for packets that match the filter
 *   input, forward, output, postrouting, after all others ─ passed-*: no rule
 *   input, output, just before IPVS, only in mode ipvs ─ before-ipvs-*: no rule
 *
 * Tracing ends whatever happens to the agent. The table belongs to a netlink socket
 * (NFT_TABLE_F_OWNER): the kernel deletes it when the socket is closed, also by SIGKILL. The rules
 * look up the destination in a set. Its only element expires, so a process that hangs traces nothing
 * after that time. An empty chain shows in the trace that the packet arrived there.
 */
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { addressBytes, addressFamily } from '../core/address.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { EEXIST, EINVAL, EOPNOTSUPP, EPERM, UnsupportedError } from '../core/error.ts';
import { encodeNumber } from '../core/network-order.ts';
import { protocolNumbers } from '../core/protocol.ts';
import { NetlinkSocket, type RefusedMessage } from '../core/socket.ts';
import { newChainRequest } from './chain.ts';
import { baseAt, HOOKS, type Hook } from './hooks.ts';
import { newRuleRequest, newTableRequest } from './message.ts';
import {
  cmp,
  encodeRule,
  immediate,
  limit,
  lookup,
  META_KEY,
  meta,
  type NftExpression,
  PAYLOAD_BASE,
  payload,
  setTrace,
} from './rule.ts';
import { newSetRequest } from './set.ts';
import { DATATYPE } from './set-description.ts';
import { TransactionWriter } from './transaction.ts';
import { NftRefusedError } from './transaction-builder.ts';
import { NFT_SET_FLAGS, type NftTable } from './types.ts';

export const TRACE_TABLE = 'portwide-trace';

/** Chains that select packets, by name. */
const SELECT_CHAINS = ['select-prerouting', 'select-output'] as const;

/** Hooks where IPVS takes packets, with priorities just before it (ip_vs_ops4 and ip_vs_ops6 of ip_vs_core.c). */
const BEFORE_IPVS = { input: 97, output: -99 } as const;
export type IpvsHook = keyof typeof BEFORE_IPVS;
const IPVS_HOOKS: readonly IpvsHook[] = ['input', 'output'];

/** The packets to trace. All fields that are set must match. */
export interface TraceFilter {
  readonly family: IpFamily;
  /** Before DNAT. */
  readonly destination: string;
  readonly source: string | undefined;
  readonly protocol: Protocol | undefined;
  /** Destination port before DNAT; needs `protocol`. */
  readonly port: number | undefined;
  /** Needs `protocol`. */
  readonly sourcePort?: number | undefined;
  /** `output`: only packets that this node sends. `prerouting`: only packets that arrive. */
  readonly hooks: 'both' | 'output' | 'prerouting';
  /** Further matches. */
  readonly matches?: readonly NftExpression[];
}

/** Another trace is running in this network namespace. */
export class TraceRunningError extends Error {
  override readonly name = 'TraceRunning';

  constructor(cause: unknown) {
    super(
      `another live trace is running on this node (nf_tables table ${TRACE_TABLE}); try again when it has ended`,
      { cause },
    );
  }
}

/** After defragmentation (-400), so that all packets have ports, and before all usual tables. */
const FIRST = -399;
/** After all usual tables. */
const LAST = 32_000;
const SET = 'destination';
const SOURCE_OFFSET: Readonly<Record<IpFamily, number>> = { IPv4: 12, IPv6: 8 };
const SOURCE_PORT_OFFSET = 0;
const PORT_OFFSET = 2;

/** Whether a chain selects packets: its rule is the first event of each packet. */
export function isSelectChain(chain: string): boolean {
  return SELECT_CHAINS.some((each) => each === chain);
}

/** The hook of a chain at whose end a traced packet is seen; undefined for another chain. */
export function passedHook(chain: string): Hook | undefined {
  return HOOKS.find((hook) => chain === `passed-${hook}`);
}

/** The hook of a chain that a traced packet passes just before IPVS; undefined for another chain. */
export function ipvsHook(chain: string): IpvsHook | undefined {
  return IPVS_HOOKS.find((hook) => chain === `before-ipvs-${hook}`);
}

/**
 * The requests that create the table.
 * @param milliseconds until the filter matches nothing.
 * @param forwardsWithIpvs whether the trace shows packets just before IPVS.
 * @throws RangeError for a filter that selects all packets to a destination.
 */
export function traceTableRequests(
  filter: TraceFilter,
  milliseconds: number,
  packetsPerSecond: number,
  forwardsWithIpvs: boolean,
): { readonly table: NftTable; write(to: TransactionWriter): void } {
  const { family, destination, source, port, hooks } = filter;
  if (source === undefined && port === undefined)
    throw new RangeError('a trace needs a source address, or a protocol and a port');
  const table = { family: addressFamily(family), name: TRACE_TABLE };
  const before = [
    newTableRequest(table, true),
    newSetRequest(table, {
      name: SET,
      flags: NFT_SET_FLAGS.timeout,
      // So that `nft list` prints addresses.
      key: { datatype: DATATYPE[family], length: addressBytes(destination).length },
    }),
  ];
  const rule = { expressions: encodeRule(selectExpressions(filter, packetsPerSecond)) };
  const after = [
    ...SELECT_CHAINS.map((chain) =>
      newChainRequest(table, chain, baseAt('filter', hookOf(chain), FIRST)),
    ),
    ...HOOKS.map((hook) => newChainRequest(table, `passed-${hook}`, baseAt('filter', hook, LAST))),
    ...(forwardsWithIpvs ? IPVS_HOOKS : []).map((hook) => {
      const base = baseAt('filter', hook, BEFORE_IPVS[hook]);
      return newChainRequest(table, `before-ipvs-${hook}`, base);
    }),
    ...SELECT_CHAINS.filter((chain) => hooks === 'both' || hooks === hookOf(chain)).map((chain) =>
      newRuleRequest(table, chain, rule),
    ),
  ];
  return {
    table,
    write: (to) => {
      for (const request of before) to.append(request);
      to.write('add', SET, { key: addressBytes(destination), timeoutMs: milliseconds });
      for (const request of after) to.append(request);
    },
  };
}

function hookOf(chain: (typeof SELECT_CHAINS)[number]): 'output' | 'prerouting' {
  return chain === 'select-output' ? 'output' : 'prerouting';
}

function selectExpressions(
  { family, source, protocol, port, sourcePort, matches = [] }: TraceFilter,
  packetsPerSecond: number,
): NftExpression[] {
  const width = family === 'IPv4' ? 4 : 16;
  const offset = SOURCE_OFFSET[family];
  const address = (at: number) => payload(0, PAYLOAD_BASE.network, at, width);
  return [
    ...(source === undefined ? [] : [address(offset), cmp(0, addressBytes(source))]),
    address(offset + width),
    lookup(SET, 0),
    ...(protocol === undefined
      ? []
      : [meta(0, META_KEY.protocol), cmp(0, Buffer.from([protocolNumbers[protocol]]))]),
    ...(protocol === undefined
      ? []
      : [...portIs(SOURCE_PORT_OFFSET, sourcePort), ...portIs(PORT_OFFSET, port)]),
    ...matches,
    limit(packetsPerSecond, packetsPerSecond),
    immediate(0, Buffer.from([1])),
    setTrace(0),
  ];
}

function portIs(offset: number, port: number | undefined): NftExpression[] {
  if (port === undefined) return [];
  return [payload(0, PAYLOAD_BASE.transport, offset, 2), cmp(0, encodeNumber(port, 2))];
}

/** A trace that is armed in the kernel. */
export interface ArmedTrace {
  /** Deletes the table. The kernel does it as well when the process ends. */
  disarm(): Promise<void>;
}

/**
 * Traces matching packets until `disarm`, at most for a time. The caller watches traces with
 * `watchTraces`.
 * @param milliseconds after which no packet matches any longer, even if `disarm` is never called.
 * @param forwardsWithIpvs whether the trace shows packets just before IPVS.
 * @throws TraceRunningError; UnsupportedError if the kernel has no tables with an owner (Linux
 * before 5.12); NftRefusedError; NetlinkError.
 */
export async function armTrace(
  filter: TraceFilter,
  milliseconds: number,
  packetsPerSecond: number,
  forwardsWithIpvs: boolean,
): Promise<ArmedTrace> {
  const { table, write } = traceTableRequests(
    filter,
    milliseconds,
    packetsPerSecond,
    forwardsWithIpvs,
  );
  const socket = new NetlinkSocket(NETLINK_NETFILTER);
  const create = () =>
    socket.transaction(async () => {
      const writer = new TransactionWriter(table.family, table.name);
      write(writer);
      return writer.finish();
    });
  try {
    const [refusal] = await create();
    if (refusal !== undefined) throw refusedError(refusal);
  } catch (error) {
    await socket.close();
    throw error;
  }
  return { disarm: () => socket.close() };
}

/** Index of the request that creates the table, after the batch begin. */
const TABLE_REQUEST = 1;

function refusedError({ index, error }: RefusedMessage): Error {
  // EPERM: the table belongs to another socket. EEXIST: it has no owner, so no agent made it.
  if (index === TABLE_REQUEST && (error.errno === EPERM || error.errno === EEXIST))
    return new TraceRunningError(error);
  if (index === TABLE_REQUEST && (error.errno === EOPNOTSUPP || error.errno === EINVAL)) {
    const feature = 'nf_tables tables with an owner, which live tracing needs (Linux 5.12)';
    return new UnsupportedError(feature, { cause: error });
  }
  return new NftRefusedError(error);
}
