/**
 * Attaches an eBPF program that accepts all packets to an interface of this network namespace, as Cilium and Calico do
 * by netlink. Arguments: interface, and the name of the tc filter or `xdp`.
 */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { encodeAttributes } from '../../netlink/core/attribute.ts';
import { NETLINK_ROUTE } from '../../netlink/core/descriptor.ts';
import { u32, writeU32 } from '../../netlink/core/host-order.ts';
import type { NetlinkRequest } from '../../netlink/core/message.ts';
import { withSocket } from '../../netlink/core/socket.ts';
import { nulTerminated } from '../../netlink/core/text.ts';
import { listLinks } from '../../netlink/route/rtnetlink.ts';

const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;

/** bpf(2): number of the system call by processor, and command BPF_PROG_LOAD. */
const SYS_BPF: Readonly<Record<string, number>> = { x64: 321, arm64: 280 };
const BPF_PROG_LOAD = 5;
/** Program types, and programs: `r0 = TC_ACT_OK` or `r0 = XDP_PASS`, `exit`. */
const TC = { type: 3, program: Buffer.from('b7000000000000009500000000000000', 'hex') };
const XDP = { type: 6, program: Buffer.from('b7000000020000009500000000000000', 'hex') };

function loadProgram({ type, program }: typeof TC): number {
  const license = nulTerminated('GPL');
  const attributes = Buffer.alloc(48);
  writeU32(attributes, type, 0);
  writeU32(attributes, program.length / 8, 4);
  attributes.writeBigUInt64LE(koffi.address(program), 8);
  attributes.writeBigUInt64LE(koffi.address(license), 16);
  const syscall = koffi.load(null).func('long syscall(long, int, void *, unsigned int)');
  const fd = Number(syscall(SYS_BPF[process.arch], BPF_PROG_LOAD, attributes, attributes.length));
  if (fd < 0) throw new Error(`bpf(2): errno ${koffi.errno()}`);
  return fd;
}

/** linux/rtnetlink.h, linux/netlink.h, linux/pkt_cls.h, linux/pkt_sched.h, linux/if_ether.h. */
const RTM_NEWTFILTER = 44;
const NLM_F_EXCL_CREATE = 0x600;
const CLSACT_INGRESS = 0xffff_fff2;
const ETH_P_ALL = 3;
const [TCA_KIND, TCA_OPTIONS] = [1, 2];
const [TCA_BPF_FD, TCA_BPF_NAME, TCA_BPF_FLAGS] = [6, 7, 8];
const DIRECT_ACTION = 1;
/** linux/if_link.h */
const RTM_SETLINK = 19;
const IFLA_XDP = 43;
const IFLA_XDP_FD = 1;

const [interfaceName = '', filterName = ''] = process.argv.slice(2);
const [index] = [...(await listLinks()).names].find(([, name]) => name === interfaceName) ?? [];
if (index === undefined) throw new Error(`no interface ${interfaceName}`);

function filterRequest(index: number, name: string): NetlinkRequest {
  const header = Buffer.alloc(20);
  writeU32(header, index, 4);
  writeU32(header, CLSACT_INGRESS, 12);
  // Protocol in network order, and priority 1.
  header.writeUInt16BE(ETH_P_ALL, 16);
  header.writeUInt16LE(1, 18);
  const options = [
    { type: TCA_BPF_FD, value: u32(loadProgram(TC)) },
    { type: TCA_BPF_NAME, value: nulTerminated(name) },
    { type: TCA_BPF_FLAGS, value: u32(DIRECT_ACTION) },
  ];
  const attributes = [
    { type: TCA_KIND, value: nulTerminated('bpf') },
    { type: TCA_OPTIONS, value: options },
  ];
  const payload = encodeAttributes(attributes, header);
  return { type: RTM_NEWTFILTER, flags: NLM_F_EXCL_CREATE, payload };
}

function xdpRequest(index: number): NetlinkRequest {
  const header = Buffer.alloc(16);
  writeU32(header, index, 4);
  const value = [{ type: IFLA_XDP_FD, value: u32(loadProgram(XDP)) }];
  return { type: RTM_SETLINK, payload: encodeAttributes([{ type: IFLA_XDP, value }], header) };
}

await withSocket(NETLINK_ROUTE, (socket) =>
  socket.request(filterName === 'xdp' ? xdpRequest(index) : filterRequest(index, filterName)),
);
