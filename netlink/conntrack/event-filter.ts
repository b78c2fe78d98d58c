/** BPF programs that decide in the kernel which conntrack events a socket gets. */
import { addressBytes } from '../core/address.ts';
import { type BpfInstruction, bpfProgram } from '../core/socket-filter.ts';
import { CTA_STATUS, CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, IPS_DST_NAT } from './entry.ts';
import {
  CTA_IP_V4_DST,
  CTA_IP_V4_SRC,
  CTA_IP_V6_DST,
  CTA_IP_V6_SRC,
  CTA_PROTO_DST_PORT,
  CTA_PROTO_SRC_PORT,
  CTA_TUPLE_IP,
  CTA_TUPLE_PROTO,
} from './tuple.ts';

/** Which events a reader wants: an entry matches if it has one of the addresses or one of the ports. */
export interface EventSelection {
  /** Original destination addresses. All addresses are canonical text. */
  readonly destinations: readonly string[];
  /** Original destination ports. */
  readonly destinationPorts: readonly number[];
  /** Addresses of the original source, of the original destination, or of the endpoint (source of the reply). */
  readonly addresses: readonly string[];
  /** Original destination ports, or ports of the endpoint. */
  readonly ports: readonly number[];
}

interface EventFilterOptions {
  /** Whether to drop entries without IPS_DST_NAT. */
  readonly translatedOnly: boolean;
  /** Keeps one of so many events, at random. Default: all. */
  readonly oneOf?: number;
  readonly selection?: EventSelection | undefined;
}

/** Classic BPF, linux/bpf_common.h, with the netlink extensions of linux/filter.h. */
const LOAD_IMMEDIATE = 0x00;
const LOAD_X_IMMEDIATE = 0x01;
const STORE = 0x02;
const JUMP = 0x05;
const RETURN = 0x06;
const COPY_TO_X = 0x07;
const JUMP_IF_EQUAL = 0x15;
const LOAD_WORD = 0x20;
const JUMP_IF_GREATER = 0x25;
const LOAD_WORD_AT_X = 0x40;
const JUMP_IF_SET = 0x45;
const LOAD_HALF_AT_X = 0x48;
const LOAD_STORED = 0x60;
/** SKF_AD_OFF + SKF_AD_NLATTR: the offset of attribute X from offset A on; 0 if it is missing. */
const FIND_ATTRIBUTE = 0xfffff000 + 12;
/** SKF_AD_OFF + SKF_AD_NLATTR_NEST: the same within the attribute at offset A. */
const FIND_NESTED = 0xfffff000 + 16;
/** SKF_AD_OFF + SKF_AD_RANDOM */
const RANDOM = 0xfffff000 + 56;
/** nlmsghdr and nfgenmsg. */
const FIRST_ATTRIBUTE = 20;
const ALL = 0xffffffff;
/** Instructions that a conditional jump can skip. */
const MAX_JUMP = 255;

/**
 * An entry without the attributes that a condition reads passes. A selection whose program is too long for its jumps, with
 * about 200 values, selects all.
 */
export function eventFilter(options: EventFilterOptions): Buffer {
  const { translatedOnly, oneOf = 1, selection } = options;
  return bpfProgram([
    ...(translatedOnly ? IS_TRANSLATED : []),
    ...(oneOf > 1 ? isSampled(oneOf) : []),
    ...(selection === undefined ? [] : isSelected(selection)),
    [RETURN, 0, 0, ALL],
  ]);
}

const IS_TRANSLATED: readonly BpfInstruction[] = [
  [LOAD_IMMEDIATE, 0, 0, FIRST_ATTRIBUTE],
  [LOAD_X_IMMEDIATE, 0, 0, CTA_STATUS],
  [LOAD_WORD, 0, 0, FIND_ATTRIBUTE],
  [JUMP_IF_EQUAL, 4, 0, 0],
  [COPY_TO_X, 0, 0, 0],
  [LOAD_WORD_AT_X, 0, 0, 4],
  [JUMP_IF_SET, 1, 0, IPS_DST_NAT],
  [RETURN, 0, 0, 0],
];

function isSampled(oneOf: number): BpfInstruction[] {
  return [
    [LOAD_WORD, 0, 0, RANDOM],
    [JUMP_IF_GREATER, 0, 1, Math.floor(2 ** 32 / oneOf)],
    [RETURN, 0, 0, 0],
  ];
}

function isSelected(selection: EventSelection): BpfInstruction[] {
  const { addresses, ports } = selection;
  const destinations = [...selection.destinations, ...addresses];
  const destinationPorts = [...selection.destinationPorts, ...ports];
  const program = [
    ...findTuple(CTA_TUPLE_ORIG),
    ...hasAddress(CTA_IP_V4_DST, CTA_IP_V6_DST, destinations),
    ...hasAddress(CTA_IP_V4_SRC, CTA_IP_V6_SRC, addresses),
    ...hasPort(CTA_PROTO_DST_PORT, destinationPorts),
    ...findTuple(CTA_TUPLE_REPLY),
    ...hasAddress(CTA_IP_V4_SRC, CTA_IP_V6_SRC, addresses),
    ...hasPort(CTA_PROTO_SRC_PORT, ports),
    [RETURN, 0, 0, 0],
  ] as const satisfies readonly BpfInstruction[];
  if (program.length > MAX_JUMP) return [];
  return program.map(([code, yes, no, value], index) => {
    return [code, yes === ALL ? program.length - index - 1 : yes, no, value];
  });
}

/** Jumps to the end of `isSelected`, where the event passes, if A has a value. */
function passIf(value: number): BpfInstruction {
  return [JUMP_IF_EQUAL, ALL, 0, value];
}

/** Stores the offset of a tuple. */
function findTuple(type: number): BpfInstruction[] {
  return [
    [LOAD_IMMEDIATE, 0, 0, FIRST_ATTRIBUTE],
    [LOAD_X_IMMEDIATE, 0, 0, type],
    [LOAD_WORD, 0, 0, FIND_ATTRIBUTE],
    passIf(0),
    [STORE, 0, 0, 0],
  ];
}

/** Compares an address of the tuple by its last four bytes. */
function hasAddress(v4: number, v6: number, addresses: readonly string[]): BpfInstruction[] {
  if (addresses.length === 0) return [];
  return [
    [LOAD_STORED, 0, 0, 0],
    [LOAD_X_IMMEDIATE, 0, 0, CTA_TUPLE_IP],
    [LOAD_WORD, 0, 0, FIND_NESTED],
    passIf(0),
    [STORE, 0, 0, 1],
    [LOAD_X_IMMEDIATE, 0, 0, v4],
    [LOAD_WORD, 0, 0, FIND_NESTED],
    [JUMP_IF_EQUAL, 3, 0, 0],
    [COPY_TO_X, 0, 0, 0],
    [LOAD_WORD_AT_X, 0, 0, 4],
    [JUMP, 0, 0, 6],
    [LOAD_STORED, 0, 0, 1],
    [LOAD_X_IMMEDIATE, 0, 0, v6],
    [LOAD_WORD, 0, 0, FIND_NESTED],
    passIf(0),
    [COPY_TO_X, 0, 0, 0],
    [LOAD_WORD_AT_X, 0, 0, 16],
    ...addresses.map((address) => passIf(addressBytes(address).subarray(-4).readUInt32BE())),
  ];
}

/** Compares a port of the tuple. */
function hasPort(type: number, ports: readonly number[]): BpfInstruction[] {
  if (ports.length === 0) return [];
  return [
    [LOAD_STORED, 0, 0, 0],
    [LOAD_X_IMMEDIATE, 0, 0, CTA_TUPLE_PROTO],
    [LOAD_WORD, 0, 0, FIND_NESTED],
    passIf(0),
    [LOAD_X_IMMEDIATE, 0, 0, type],
    [LOAD_WORD, 0, 0, FIND_NESTED],
    passIf(0),
    [COPY_TO_X, 0, 0, 0],
    [LOAD_HALF_AT_X, 0, 0, 4],
    ...ports.map(passIf),
  ];
}
