/** BPF socket filters, and the filter that drops notifications caused by given netlink port IDs. */
import { u32, writeU16, writeU32 } from './host-order.ts';
import { NLMSG_PID_OFFSET } from './message.ts';

/** Classic BPF, linux/bpf_common.h. struct sock_filter: u16 code, u8 jt, u8 jf, u32 k. */
export const INSTRUCTION_LENGTH = 8;
const LOAD_WORD = 0x20;
const JUMP_IF_EQUAL = 0x15;
const RETURN = 0x06;
const WHOLE = 0xffffffff;

/**
 * Builds a filter that drops a datagram if a listed port ID caused its first message. A datagram
 * never mixes notifications of two requests.
 * @param ports At most 255 port IDs.
 * @throws RangeError for more than 255.
 */
export function portIdFilter(ports: readonly number[]): Buffer {
  if (ports.length > 255)
    throw new RangeError(`netlink filter for ${ports.length} port IDs exceeds the maximum of 255`);
  return bpfProgram([
    [LOAD_WORD, 0, 0, NLMSG_PID_OFFSET],
    // BPF loads words in network order, and the header is in host order. Jump to the last
    // instruction.
    ...ports.map((port, index): BpfInstruction => {
      return [JUMP_IF_EQUAL, ports.length - index, 0, u32(port).readUInt32BE()];
    }),
    [RETURN, 0, 0, WHOLE],
    [RETURN, 0, 0, 0],
  ]);
}

/** An instruction of classic BPF (struct sock_filter). Jumps are relative to the next instruction. */
export type BpfInstruction = readonly [
  code: number,
  jumpIfTrue: number,
  jumpIfFalse: number,
  k: number,
];

/** Encodes a program for SO_ATTACH_FILTER. */
export function bpfProgram(program: readonly BpfInstruction[]): Buffer {
  const bytes = Buffer.alloc(program.length * INSTRUCTION_LENGTH);
  for (const [index, [code, jumpIfTrue, jumpIfFalse, k]] of program.entries()) {
    const offset = index * INSTRUCTION_LENGTH;
    writeU16(bytes, code, offset);
    bytes.writeUInt8(jumpIfTrue, offset + 2);
    bytes.writeUInt8(jumpIfFalse, offset + 3);
    writeU32(bytes, k, offset + 4);
  }
  return bytes;
}
