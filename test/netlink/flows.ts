import { familyOf } from '../../api/addresses.ts';
import { tupleAttributes } from '../../netlink/conntrack/tuple.ts';
import { addressFamily } from '../../netlink/core/address.ts';
import { type Attribute, encodeAttributes } from '../../netlink/core/attribute.ts';
import { NETLINK_NETFILTER } from '../../netlink/core/descriptor.ts';
import type { NetlinkRequest } from '../../netlink/core/message.ts';
import { encodeNumber } from '../../netlink/core/network-order.ts';
import { NetlinkSocket } from '../../netlink/core/socket.ts';

/** Conntrack entries from one client address, each with its own source port, to one destination. */
export interface Flows {
  readonly count: number;
  readonly src: string;
  readonly dst: string;
  readonly dstPort: number;
  /** Address of the endpoint after DNAT. */
  readonly endpoint: string;
  /** Port of the endpoint. Default: `dstPort`. */
  readonly endpointPort?: number;
  readonly protocol: number;
  readonly firstSrcPort?: number;
  readonly zone?: number;
}

const IPCTNL_MSG_CT_NEW = 1 << 8;
const NLM_F_CREATE_EXCL = 0x400 | 0x200;
const CTA_TUPLE_ORIG = 1;
const CTA_TUPLE_REPLY = 2;
const CTA_STATUS = 3;
const CTA_TIMEOUT = 7;
const CTA_ZONE = 18;
const CONFIRMED_ASSURED_SEEN_REPLY = 0x0e;

/** Creates conntrack entries without sending packets. */
export async function insertFlows(flows: Flows): Promise<void> {
  const { count, src, dst, dstPort, endpoint, protocol, firstSrcPort = 1024, zone = 0 } = flows;
  const header = Buffer.alloc(4);
  header.writeUInt8(addressFamily(familyOf(dst)));
  const requests: NetlinkRequest[] = [];
  for (let index = 0; index < count; index++) {
    const port = firstSrcPort + index;
    const attributes: Attribute[] = [
      {
        type: CTA_TUPLE_ORIG,
        value: tupleAttributes({ src, dst, protocol, ports: [port, dstPort] }),
      },
      {
        type: CTA_TUPLE_REPLY,
        value: tupleAttributes({
          src: endpoint,
          dst: src,
          protocol,
          ports: replyPorts(flows, port),
        }),
      },
      { type: CTA_STATUS, value: encodeNumber(CONFIRMED_ASSURED_SEEN_REPLY, 4) },
      { type: CTA_TIMEOUT, value: encodeNumber(600, 4) },
    ];
    if (zone !== 0) attributes.push({ type: CTA_ZONE, value: encodeNumber(zone, 2) });
    requests.push({
      type: IPCTNL_MSG_CT_NEW,
      flags: NLM_F_CREATE_EXCL,
      payload: Buffer.concat([header, encodeAttributes(attributes)]),
    });
  }
  const socket = new NetlinkSocket(NETLINK_NETFILTER, { sendBuffer: 32 << 20 });
  try {
    for (let start = 0; start < count; start += 10_000) {
      const [refusal] = await socket.batch(requests.slice(start, start + 10_000));
      if (refusal !== undefined) throw refusal.error;
    }
  } finally {
    await socket.close();
  }
}

/** The reply to an ICMP echo request (type 8) has type 0 and the same ID. */
function replyPorts(flows: Flows, srcPort: number): [number, number] {
  const { protocol, dstPort, endpointPort = dstPort } = flows;
  return protocol === 1 ? [srcPort, 0] : [endpointPort, srcPort];
}
