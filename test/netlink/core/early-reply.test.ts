import assert from 'node:assert/strict';
import { NETLINK_ROUTE } from '../../../netlink/core/descriptor.ts';
import { EAGAIN } from '../../../netlink/core/error.ts';
import { libc } from '../../../netlink/core/libc.ts';
import { encodeMessages, NLMSG_ERROR, packMessages } from '../../../netlink/core/message.ts';
import { NetlinkSocket } from '../../../netlink/core/socket.ts';

describe('early-reply: replies to small transactions', () => {
  const real = { ...libc() };
  const { now } = performance;
  /** The clock stands still, however busy this machine is. */
  let clock: number;
  let socket: NetlinkSocket;
  let replies: Buffer[];
  /** Milliseconds that each wait may take. */
  let waits: number[];
  let sends: number;
  /** Whether the kernel replies while the socket waits. */
  let isFast: boolean;

  beforeEach(async () => {
    socket = new NetlinkSocket(NETLINK_ROUTE);
    [replies, waits, sends, isFast] = [[], [], 0, true];
    clock = performance.now();
    performance.now = () => clock;
    let sequence = 0;
    // Transactions of three messages: the second requests the ack.
    const reply = () =>
      void replies.push(
        encodeMessages([{ type: NLMSG_ERROR, payload: Buffer.alloc(20) }], sequence),
      );
    Object.assign(libc(), {
      send: async (_: number, { length }: Buffer) => {
        sends += 1;
        sequence += sequence === 0 ? 2 : 3;
        await new Promise(setImmediate);
        if (!isFast) reply();
        return length;
      },
      waitReadable: (_: number, milliseconds: number) => {
        waits.push(milliseconds);
        if (isFast) reply();
        return isFast;
      },
      receive: (_: number, { bytes, sender }: { bytes: Buffer; sender: Buffer }) => {
        sender.fill(0);
        return replies.shift()?.copy(bytes) ?? -EAGAIN;
      },
    });
    await new Promise(setImmediate);
  });

  afterEach(async () => {
    performance.now = now;
    Object.assign(libc(), real);
    await socket.close();
  });

  const transaction = (bytes = 0) => {
    const message = { type: 0x10, payload: Buffer.alloc(bytes) };
    return socket.transaction(async () => packMessages([message, message, message]));
  };

  /** Whether requests of others could run before `work` ended. */
  async function letsOthersRun(work: () => Promise<unknown>): Promise<boolean> {
    let hasTurned = false;
    const turn = new Promise<void>((resolve) => {
      setImmediate(() => {
        hasTurned = true;
        resolve();
      });
    });
    await work();
    const before = hasTurned;
    await turn;
    return before;
  }

  it('are read before other work of the event loop runs', async () => {
    assert.equal(await letsOthersRun(() => transaction()), false);
    assert.deepEqual([sends, waits], [1, [2]]);
  });

  it('are awaited without holding up the event loop if the kernel takes long', async () => {
    isFast = false;
    assert.equal(await letsOthersRun(() => transaction()), true);
    assert.deepEqual([sends, waits], [1, [2]]);
  });

  it('are not awaited for a large transaction', async () => {
    isFast = false;
    await transaction(16_384);
    assert.deepEqual([sends, waits], [1, []]);
  });

  it('hold up the event loop for a bounded time, however many transactions follow', async () => {
    await letsOthersRun(async () => {
      await transaction();
      clock += 1.5;
      await transaction();
      clock += 1000;
      isFast = false;
      await transaction();
    });
    assert.deepEqual([sends, waits], [3, [2, 0.5]]);
  });
});
