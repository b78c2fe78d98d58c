/**
 * BPF programs on network interfaces, over rtnetlink: tc filters of kind `bpf`, and XDP. TCX programs (Linux 6.6) and
 * programs on cgroups are visible to bpf(2) only.
 */
import { MessageType } from 'netlink/dist/rt/structs.js';
import { encodeAttributes, readAttributes } from '../core/attribute.ts';
import { NETLINK_ROUTE } from '../core/descriptor.ts';
import { readU32, writeU32 } from '../core/host-order.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { type NetlinkSocket, withSocket } from '../core/socket.ts';
import { readText } from '../core/text.ts';
import { linkRequest, readLink, SKIP_STATS } from './rtnetlink.ts';

/** A BPF program on an interface. */
export interface BpfProgram {
  readonly interfaceName: string;
  readonly hook: 'ingress' | 'egress' | 'xdp';
  /** The name of the tc filter; empty without one, and for XDP. */
  readonly name: string;
}

/** linux/rtnetlink.h */
const RTM_NEWQDISC = 36;
const RTM_GETQDISC = 38;
const RTM_NEWTFILTER = 44;
const RTM_GETTFILTER = 46;
/** struct tcmsg: family, padding, interface index, handle, parent, info. */
const TCMSG_LENGTH = 20;
const TCMSG_INTERFACE = 4;
const TCMSG_PARENT = 12;
const TCA_KIND = 1;
const TCA_OPTIONS = 2;
/** linux/pkt_cls.h */
const TCA_BPF_NAME = 7;
/** TC_H_CLSACT with TC_H_MIN_INGRESS and TC_H_MIN_EGRESS of linux/pkt_sched.h. */
const PARENTS = { ingress: 0xffff_fff2, egress: 0xffff_fff3 } as const;
/** struct ifinfomsg, then linux/if_link.h. */
const IFINFOMSG_LENGTH = 16;
const IFLA_XDP = 43;
const IFLA_XDP_ATTACHED = 2;

/** Lists BPF programs on interfaces of this network namespace. @throws NetlinkError; MalformedMessage */
export function listBpfPrograms(): Promise<BpfProgram[]> {
  return withSocket(NETLINK_ROUTE, async (socket) => {
    const links = await socket.dump(linkRequest(MessageType.GETLINK, SKIP_STATS), readXdpLink);
    const names = new Map(links.map(({ index, name }) => [index, name]));
    const programs = links
      .filter(({ hasXdp }) => hasXdp)
      .map(({ name }): BpfProgram => ({ interfaceName: name, hook: 'xdp', name: '' }));
    const qdiscs = await socket.dump(tcRequest(RTM_GETQDISC, 0, 0), readFilterQdisc);
    for (const { index, kind } of qdiscs) {
      const interfaceName = names.get(index);
      if (interfaceName === undefined) continue;
      // Qdisc `ingress` has no other hook, and answers for both parents.
      const hooks = kind === 'clsact' ? (['ingress', 'egress'] as const) : (['ingress'] as const);
      for (const hook of hooks) {
        for (const name of await filterNames(socket, index, PARENTS[hook]))
          programs.push({ interfaceName, hook, name });
      }
    }
    return programs;
  });
}

function filterNames(socket: NetlinkSocket, index: number, parent: number): Promise<string[]> {
  return socket.dump(tcRequest(RTM_GETTFILTER, index, parent), readBpfFilter);
}

function tcRequest(type: number, index: number, parent: number): NetlinkRequest {
  const header = Buffer.alloc(TCMSG_LENGTH);
  writeU32(header, index, TCMSG_INTERFACE);
  writeU32(header, parent, TCMSG_PARENT);
  return { type, payload: encodeAttributes([], header) };
}

function readXdpLink(message: NetlinkMessage) {
  const link = readLink(message);
  if (link === undefined) return undefined;
  const xdp = readAttributes(message.payload, IFINFOMSG_LENGTH).get(IFLA_XDP);
  const attached = xdp && readAttributes(xdp, 0).get(IFLA_XDP_ATTACHED)?.[0];
  return { index: link[0], name: link[1], hasXdp: attached !== undefined && attached !== 0 };
}

/** A qdisc that runs filters on all packets of an interface. */
function readFilterQdisc({ type, payload }: NetlinkMessage) {
  if (type !== RTM_NEWQDISC) return undefined;
  const kind = kindOf(payload);
  if (kind !== 'clsact' && kind !== 'ingress') return undefined;
  return { index: readU32(payload, TCMSG_INTERFACE), kind };
}

/** The name of a BPF filter. The kernel sends a message without options before the filters of a priority. */
function readBpfFilter({ type, payload }: NetlinkMessage): string | undefined {
  if (type !== RTM_NEWTFILTER || kindOf(payload) !== 'bpf') return undefined;
  const options = readAttributes(payload, TCMSG_LENGTH).get(TCA_OPTIONS);
  if (options === undefined) return undefined;
  const name = readAttributes(options, 0).get(TCA_BPF_NAME);
  return name === undefined ? '' : readText(name);
}

function kindOf(payload: Buffer): string | undefined {
  const kind = readAttributes(payload, TCMSG_LENGTH).get(TCA_KIND);
  return kind && readText(kind);
}
