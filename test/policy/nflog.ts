/**
 * Listens to an NFLOG group in its network namespace: `nflog.ts GROUP`. Prints `ready`, and then
 * the prefix of each packet on a line.
 */
import { encodeAttributes, readAttributes } from '../../netlink/core/attribute.ts';
import { newReceiveBuffer, readDatagram } from '../../netlink/core/datagram.ts';
import { checkResult, NETLINK_NETFILTER, openDescriptor } from '../../netlink/core/descriptor.ts';
import { EAGAIN } from '../../netlink/core/error.ts';
import { libc } from '../../netlink/core/libc.ts';
import { encodeMessages, type NetlinkRequest } from '../../netlink/core/message.ts';
import { encodeNumber } from '../../netlink/core/network-order.ts';

/** linux/netfilter/nfnetlink.h, nfnetlink_log.h */
const NFNL_SUBSYS_ULOG = 4;
const NFULNL_MSG_PACKET = 0;
const NFULNL_MSG_CONFIG = 1;
const NFULA_CFG_CMD = 1;
const NFULNL_CFG_CMD_BIND = 1;
const NFULA_CFG_QTHRESH = 5;
const NFULA_PREFIX = 10;
const NFGENMSG = 4;

const group = Number(process.argv[2]);
const fd = openDescriptor(NETLINK_NETFILTER, {});
const into = newReceiveBuffer();

function configure(type: number, value: Buffer): NetlinkRequest {
  const header = Buffer.from([0, 0, group >> 8, group & 0xff]);
  return {
    type: (NFNL_SUBSYS_ULOG << 8) | NFULNL_MSG_CONFIG,
    payload: Buffer.concat([header, encodeAttributes([{ type, value }])]),
  };
}

function receive(): void {
  for (;;) {
    const result = libc().receive(fd, into);
    if (result === -EAGAIN) return;
    for (const { type, payload } of readDatagram('nflog', into, Number(result))) {
      if (type !== ((NFNL_SUBSYS_ULOG << 8) | NFULNL_MSG_PACKET)) continue;
      const prefix = readAttributes(payload, NFGENMSG).get(NFULA_PREFIX)?.toString() ?? '';
      console.log(prefix.replaceAll('\0', ''));
    }
  }
}

libc().watch(fd, receive);
const requests = [
  configure(NFULA_CFG_CMD, Buffer.from([NFULNL_CFG_CMD_BIND])),
  configure(NFULA_CFG_QTHRESH, encodeNumber(1, 4)),
];
checkResult('nflog', await libc().send(fd, encodeMessages(requests, 1)));
console.log('ready');
