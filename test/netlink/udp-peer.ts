/** A process in the network namespace of a test. It sends UDP datagrams to itself. */
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { serveCalls } from '../child.ts';

const PORT = 5000;
const received: string[] = [];
const receiver = createSocket('udp4');
const sender = createSocket('udp4');
receiver.on('message', (bytes) => received.push(`${bytes[0]}:${bytes.length}`));
receiver.bind(PORT, '127.0.0.1');
await once(receiver, 'listening');

const functions = {
  /** Sends datagrams numbered from `first` in their first byte. */
  async send(count: number, first: number, length = 100): Promise<void> {
    for (let index = 0; index < count; index++) {
      const bytes = Buffer.alloc(length, first + index);
      await new Promise<void>((resolve, reject) => {
        sender.send(bytes, PORT, '127.0.0.1', (error) => (error ? reject(error) : resolve()));
      });
    }
  },
  /** First byte and length of each received datagram. */
  received: (): readonly string[] => received,
};

export type PeerFunctions = typeof functions;

serveCalls(functions);
