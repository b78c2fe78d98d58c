import assert from 'node:assert/strict';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { readMessages } from '../../../netlink/core/message.ts';
import {
  acceptMessage,
  bindMessage,
  maxLengthMessage,
  readPacket,
  setPacketId,
} from '../../../netlink/nfqueue/message.ts';
import { parseQueueStates } from '../../../netlink/nfqueue/queue.ts';
import { type Child, type Functions, startChild } from '../../child.ts';
import { waitFor } from '../../lab/wait.ts';
import { createNamespace, type Namespace } from '../namespace.ts';
import type { QueueProcessFunctions } from '../queue-process.ts';
import type { PeerFunctions } from '../udp-peer.ts';

const QUEUE = 7;

describe('queue: NFQUEUE messages', () => {
  const payload = (message: Buffer) => readMessages(message)[0]?.payload.toString('hex');

  it('binds and configures a queue in one message', () => {
    const message = bindMessage(0x1234, 64, 9);
    const parts = [
      // AF_UNSPEC, version, queue
      '00001234',
      // NFQNL_CFG_CMD_BIND
      '0800010001000000',
      // copy 65535 bytes of each packet
      '090002000000ffff02000000',
      '0800030000000040',
      // fail open
      '0800040000000001',
      '0800050000000001',
    ];
    assert.equal(payload(message), parts.join(''));
    const [header] = readMessages(message);
    assert.deepEqual([header?.type, header?.flags, header?.sequence], [0x302, 5, 9]);
  });

  it('sets the maximum length', () => {
    assert.equal(payload(maxLengthMessage(QUEUE, 4096)), '000000070800030000001000');
  });

  it('encodes an accept verdict for a packet ID', () => {
    const message = acceptMessage(QUEUE);
    setPacketId(message, 0xfffffffe);
    assert.equal(payload(message), '000000070c00020000000001fffffffe');
    assert.equal(readMessages(message)[0]?.type, 0x301);
    setPacketId(message, 3);
    assert.equal(payload(message), '000000070c0002000000000100000003');
  });

  describe('a packet', () => {
    const read = (hex: string) =>
      readPacket({
        type: 0x300,
        flags: 0,
        sequence: 0,
        portId: 0,
        payload: Buffer.from(hex.replaceAll(' ', ''), 'hex'),
      });
    const header = '02000007 0b00 0100 00000005 0800 02 00';

    it('has packet ID, payload and input interface', () => {
      assert.deepEqual(read(`${header} 08000500 00000003 06000a00 abcd0000`), {
        id: 5,
        ifindex: 3,
        bytes: Buffer.from('abcd', 'hex'),
      });
    });

    it('has the bridge port as input interface if known', () => {
      assert.equal(read(`${header} 08000500 00000003 08000700 00000004`).ifindex, 4);
    });

    it('throws MalformedMessage without a packet ID', () => {
      assert.throws(() => read('02000007 06000a00 abcd0000'), MalformedMessage);
    });
  });

  it('parses /proc/net/netfilter/nfnetlink_queue', () => {
    const text = [
      '    7   2141     3 2 65531     1     2       10  1',
      ' 2610      0     0 2 65531     0     0 4294967295  1',
      '',
    ].join('\n');
    assert.deepEqual(
      [...parseQueueStates(text)],
      [
        [7, { waiting: 3, dropped: 1, userDropped: 2, last: 10 }],
        [2610, { waiting: 0, dropped: 0, userDropped: 0, last: 4294967295 }],
      ],
    );
  });
});

describe('queue: an NFQUEUE', () => {
  let namespace: Namespace;
  let peer: Child<PeerFunctions>;
  let holder: Child<QueueProcessFunctions>;
  let children: Child<Functions>[] = [];

  const start = async <F extends Functions>(script: string) => {
    const child = await startChild<F>(namespace.name, new URL(script, import.meta.url));
    children.push(child as unknown as Child<Functions>);
    return child;
  };
  const waiting = async () => (await holder.call('state', QUEUE))?.waiting;
  const received = async (expected: number) =>
    await waitFor(`${expected} datagrams`, async () => {
      const all = await peer.call('received');
      return all.length >= expected ? all : undefined;
    });

  beforeEach(async () => {
    namespace = await createNamespace();
    const rule = `INPUT -p udp --dport 5000 -j NFQUEUE --queue-num ${QUEUE} --queue-bypass`;
    await namespace.run('iptables-nft', '-A', ...rule.split(' '));
    [peer, holder] = await Promise.all([
      start<PeerFunctions>('../udp-peer.ts'),
      start<QueueProcessFunctions>('../queue-process.ts'),
    ]);
  });
  afterEach(async () => {
    await Promise.all(children.map((child) => child.stop()));
    children = [];
    await namespace[Symbol.asyncDispose]();
  });

  it('delivers complete packets and accepts them in any order', async () => {
    await holder.call('listen', QUEUE, 8, false);
    await peer.call('send', 1, 1);
    await peer.call('send', 1, 2, 60_000);
    const packets = await waitFor('packets', async () => {
      const all = await holder.call('packets');
      return all.length === 2 ? all : undefined;
    });
    assert.deepEqual(
      packets.map(({ hex }) => hex.length / 2),
      [20 + 8 + 100, 20 + 8 + 60_000],
    );
    // lo has interface index 1 in every network namespace.
    assert.deepEqual(new Set(packets.map(({ ifindex }) => ifindex)), new Set([1]));
    assert.deepEqual(await peer.call('received'), []);
    const [first, second] = packets.map(({ id }) => id) as [number, number];
    await holder.call('accept', [second]);
    assert.deepEqual(await received(1), ['2:60000']);
    await holder.call('accept', [first]);
    assert.deepEqual(await received(2), ['2:60000', '1:100']);
    assert.equal(await waiting(), 0);
  });

  it('ignores a verdict for a packet that is not queued', async () => {
    await holder.call('listen', QUEUE, 8, true);
    await holder.call('accept', [77, 78]);
    await peer.call('send', 5, 1);
    assert.equal((await received(5)).length, 5);
  });

  it('lets packets bypass a full queue', async () => {
    await holder.call('listen', QUEUE, 3, false);
    await peer.call('send', 10, 0);
    assert.equal((await received(7))[0], '3:100');
    assert.deepEqual(await holder.call('state', QUEUE), {
      waiting: 3,
      dropped: 0,
      userDropped: 0,
      last: 3,
    });
    await holder.call('resize', 5);
    await peer.call('send', 4, 10);
    await received(9);
    assert.equal(await waiting(), 5);
    const ids = (await holder.call('packets')).map(({ id }) => id);
    await holder.call('accept', ids);
    assert.equal((await received(14)).length, 14);
  });

  it('delays at most the packets in the queue when the process hangs', async () => {
    await holder.call('listen', QUEUE, 3, true);
    await peer.call('send', 1, 0);
    await received(1);
    holder.signal('SIGSTOP');
    await peer.call('send', 10, 1);
    assert.deepEqual((await received(8)).slice(1), [
      '4:100',
      '5:100',
      '6:100',
      '7:100',
      '8:100',
      '9:100',
      '10:100',
    ]);
    holder.signal('SIGCONT');
    assert.equal((await received(11)).length, 11);
  });

  it('delays no packets after the process was killed', async () => {
    await holder.call('listen', QUEUE, 8, false);
    await peer.call('send', 2, 0);
    await waitFor('two waiting packets', async () => (await waiting()) === 2);
    await holder.stop();
    await peer.call('send', 3, 2);
    assert.deepEqual(await received(3), ['2:100', '3:100', '4:100']);
  });

  it('accepts unread packets when closed', async () => {
    const closed = holder.call('listenAndClose', QUEUE, 4);
    await waitFor('the queue', async () => {
      return (await namespace.run('cat', '/proc/net/netfilter/nfnetlink_queue')) !== '';
    });
    await peer.call('send', 4, 0);
    await closed;
    assert.deepEqual(await holder.call('packets'), []);
    assert.equal((await received(4)).length, 4);
    assert.equal(await holder.call('state', QUEUE), undefined);
    await peer.call('send', 1, 9);
    assert.equal((await received(5)).at(-1), '9:100');
  });

  it('can be bound by one process at a time', async () => {
    const other = await start<QueueProcessFunctions>('../queue-process.ts');
    await holder.call('listen', QUEUE, 8, true);
    await assert.rejects(other.call('listen', QUEUE, 8, true), /bind NFQUEUE 7: EPERM/);
    await holder.call('close');
    await other.call('listen', QUEUE, 8, true);
    await peer.call('send', 1, 0);
    await received(1);
    assert.equal((await other.call('packets')).length, 1);
  });
});
