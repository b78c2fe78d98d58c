/** Reads the kernel's trace of packets through nf_tables (`nft monitor trace`). */
import { addressFormatter, ipFamilyOf } from '../core/address.ts';
import { readAttributes } from '../core/attribute.ts';
import { NETLINK_NETFILTER } from '../core/descriptor.ts';
import { MalformedMessage } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { optionalNumber, readNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH, NFNL_SUBSYS_NFTABLES } from '../core/nfnetlink.ts';
import { NetlinkSocket } from '../core/socket.ts';
import { readText } from '../core/text.ts';
import { NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE } from './element.ts';
import { textAttribute } from './message.ts';

/** linux/netfilter/nf_tables.h: NFT_MSG_TRACE, enum nft_trace_attributes, enum nft_trace_types. */
const NFT_MSG_TRACE = NFNL_SUBSYS_NFTABLES | 17;
const NFTA_TRACE_TABLE = 1;
const NFTA_TRACE_CHAIN = 2;
const NFTA_TRACE_RULE_HANDLE = 3;
const NFTA_TRACE_TYPE = 4;
const NFTA_TRACE_VERDICT = 5;
const NFTA_TRACE_ID = 6;
const NFTA_TRACE_NETWORK_HEADER = 8;
const NFTA_TRACE_TRANSPORT_HEADER = 9;
const NFTA_TRACE_IIF = 10;
const NFTA_TRACE_OIF = 12;
const NFTA_TRACE_MARK = 14;
const NFTA_TRACE_NFPROTO = 15;
const NFTA_TRACE_POLICY = 16;
const TRACE_TYPES = [undefined, 'policy', 'return', 'rule'] as const;

/** linux/netfilter/nfnetlink.h */
const NFNLGRP_NFTRACE = 9;
const RECEIVE_BUFFER = 4 << 20;

/** NF_DROP to NF_REPEAT of linux/netfilter.h. */
const VERDICTS = ['drop', 'accept', 'stolen', 'queue', 'repeat'] as const;
/** NFT_CONTINUE to NFT_RETURN of linux/netfilter/nf_tables.h: -1 to -5. */
const CONTROL = ['continue', 'break', 'jump', 'goto', 'return'] as const;
/** Upper bits of a verdict are a queue number or an errno. */
const NF_VERDICT_MASK = 0xff;

/** A verdict as in a trace. `stolen`: another part of the kernel, such as IPVS, took the packet. */
export interface TraceVerdict {
  readonly kind: (typeof VERDICTS)[number] | (typeof CONTROL)[number] | 'unknown';
  /** Target of `jump` and `goto`. */
  readonly chain?: string;
}

/** The headers of a traced packet. */
export interface TracedHeaders {
  readonly source: string;
  readonly destination: string;
  /** Number of the transport protocol; of the first extension header with IPv6 extension headers. */
  readonly protocol: number;
  /** undefined without a transport header with ports. */
  readonly sourcePort: number | undefined;
  readonly destinationPort: number | undefined;
}

/** A rule that a traced packet matched, the end of a chain, or the policy of a base chain. */
export interface TraceEvent {
  /** The same in all events of one packet. The kernel may use the number again for a later packet. */
  readonly id: number;
  /** Family of the table, as in NftTable. */
  readonly family: number;
  readonly table: string;
  readonly chain: string;
  /** `policy`: the end of a base chain. `return`: the end of another chain. */
  readonly type: 'rule' | 'return' | 'policy';
  /** Only with type `rule`. */
  readonly handle: number | undefined;
  readonly verdict: TraceVerdict | undefined;
  /** Only with type `policy`. */
  readonly policy: TraceVerdict | undefined;
  /** Indexes of interfaces; undefined if the hook has none. */
  readonly inInterface: number | undefined;
  readonly outInterface: number | undefined;
  readonly mark: number;
  /** Present in the first event of a packet in each base chain. */
  readonly headers: TracedHeaders | undefined;
}

/** Decodes a trace; undefined for another kind of message. @throws MalformedMessage */
export function readTrace({ type, payload }: NetlinkMessage): TraceEvent | undefined {
  if (type !== NFT_MSG_TRACE) return undefined;
  const attributes = readAttributes(payload, NFGENMSG_LENGTH);
  const number = (attribute: number) => optionalNumber(attributes, attribute, 4);
  const kind = TRACE_TYPES[number(NFTA_TRACE_TYPE) ?? 0];
  if (kind === undefined) throw new MalformedMessage('nf_tables trace of an unknown type');
  const handle = attributes.get(NFTA_TRACE_RULE_HANDLE);
  const verdict = attributes.get(NFTA_TRACE_VERDICT);
  const policy = number(NFTA_TRACE_POLICY);
  return {
    id: number(NFTA_TRACE_ID) ?? 0,
    family: readNumber(payload, 0, payload.length, 1),
    table: textAttribute(attributes, NFTA_TRACE_TABLE),
    chain: textAttribute(attributes, NFTA_TRACE_CHAIN),
    type: kind,
    handle: handle && readHandle(handle),
    verdict: verdict && readVerdict(verdict),
    policy: policy === undefined ? undefined : verdictOf(policy, undefined),
    inInterface: number(NFTA_TRACE_IIF),
    outInterface: number(NFTA_TRACE_OIF),
    mark: number(NFTA_TRACE_MARK) ?? 0,
    headers: readHeaders(attributes),
  };
}

/** A handle is a u64; the kernel counts rules of a table, so it is exact in a number. */
function readHandle(bytes: Buffer): number {
  const high = readNumber(bytes, 0, bytes.length, 4);
  return high * 2 ** 32 + readNumber(bytes, 4, bytes.length, 4);
}

function readVerdict(bytes: Buffer): TraceVerdict | undefined {
  const attributes = readAttributes(bytes, 0);
  const code = optionalNumber(attributes, NFTA_VERDICT_CODE, 4);
  if (code === undefined) return undefined;
  const chain = attributes.get(NFTA_VERDICT_CHAIN);
  return verdictOf(code, chain && readText(chain));
}

function verdictOf(code: number, chain: string | undefined): TraceVerdict {
  const signed = code | 0;
  const kind = CONTROL[-signed - 1] ?? VERDICTS[code & NF_VERDICT_MASK] ?? 'unknown';
  return chain === undefined ? { kind } : { kind, chain };
}

/** Offsets in the IPv4 and IPv6 headers. */
const HEADERS = {
  IPv4: { length: 20, protocol: 9, source: 12, width: 4 },
  IPv6: { length: 40, protocol: 6, source: 8, width: 16 },
} as const;
const WITH_PORTS: ReadonlySet<number> = new Set([6, 17, 33, 132, 136]);
const formatAddress = (bytes: Buffer, start: number, end: number) =>
  addressFormatter()(bytes, start, end);

function readHeaders(attributes: ReadonlyMap<number, Buffer>): TracedHeaders | undefined {
  const network = attributes.get(NFTA_TRACE_NETWORK_HEADER);
  const family = ipFamilyOf(optionalNumber(attributes, NFTA_TRACE_NFPROTO, 4));
  if (network === undefined || family === undefined) return undefined;
  const { length, protocol: protocolOffset, source, width } = HEADERS[family];
  if (network.length < length) return undefined;
  const protocol = network[protocolOffset] ?? 0;
  const transport = attributes.get(NFTA_TRACE_TRANSPORT_HEADER);
  const hasPorts = transport !== undefined && transport.length >= 4 && WITH_PORTS.has(protocol);
  return {
    source: formatAddress(network, source, source + width),
    destination: formatAddress(network, source + width, source + 2 * width),
    protocol,
    sourcePort: hasPorts ? transport.readUInt16BE(0) : undefined,
    destinationPort: hasPorts ? transport.readUInt16BE(2) : undefined,
  };
}

/**
 * Receives the traces of all packets of this network namespace, whichever program traces them. The kernel creates traces only for packets that a rule selected with `meta nftrace set 1`.
 * The process stays alive until the watch is closed.
 * @param onLoss Traces were lost or could not be read.
 * @throws NetlinkError, such as EINVAL if the kernel has no nf_tables.
 */
export function watchTraces(
  onEvent: (event: TraceEvent) => void,
  onLoss: (error: Error) => void,
): { close(): Promise<void> } {
  const socket = new NetlinkSocket(NETLINK_NETFILTER, { receiveBuffer: RECEIVE_BUFFER });
  const onMessages = (messages: readonly NetlinkMessage[]) => {
    for (const message of messages) {
      const event = readOrLose(message, onLoss);
      if (event !== undefined) onEvent(event);
    }
  };
  try {
    socket.subscribe([NFNLGRP_NFTRACE], onMessages, onLoss);
  } catch (error) {
    void socket.close();
    throw error;
  }
  return { close: () => socket.close() };
}

function readOrLose(
  message: NetlinkMessage,
  onLoss: (error: Error) => void,
): TraceEvent | undefined {
  try {
    return readTrace(message);
  } catch (error) {
    if (!(error instanceof MalformedMessage)) throw error;
    onLoss(error);
    return undefined;
  }
}
