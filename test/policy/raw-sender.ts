/**
 * Sends IP packets, header and all, as they are: `raw-sender.ts DESTINATION HEX...`. Runs in the
 * namespace of a host.
 */
import { familyOf } from '../lab/packets.ts';
import { openRaw } from '../lab/raw.ts';

/** Of a raw socket it means that the header is the sender's. */
const IPPROTO_RAW = 255;

const [destination = '', ...packets] = process.argv.slice(2);
const socket = openRaw(familyOf(destination), IPPROTO_RAW);
for (const packet of packets) {
  await new Promise<void>((resolve, reject) => {
    socket.send(Buffer.from(packet, 'hex'), IPPROTO_RAW, destination, (error) => {
      // The host's own rules took it.
      const isTaken = (error as NodeJS.ErrnoException | null)?.code === 'EPERM';
      if (error === null || isTaken) resolve();
      else reject(error);
    });
  });
}
socket.close();
