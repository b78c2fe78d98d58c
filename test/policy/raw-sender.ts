/**
 * Sends IP packets including their headers: `raw-sender.ts DESTINATION HEX...`. Runs in the network
 * namespace of a host.
 */
import { familyOf } from '../lab/packets.ts';
import { openRaw } from '../lab/raw.ts';

/** The protocol of raw sockets whose packets include the IP header. */
const IPPROTO_RAW = 255;

const [destination = '', ...packets] = process.argv.slice(2);
const socket = openRaw(familyOf(destination), IPPROTO_RAW);
for (const packet of packets) {
  await new Promise<void>((resolve, reject) => {
    socket.send(Buffer.from(packet, 'hex'), IPPROTO_RAW, destination, (error) => {
      // A rule of the host itself dropped the packet.
      const isTaken = (error as NodeJS.ErrnoException | null)?.code === 'EPERM';
      if (error === null || isTaken) resolve();
      else reject(error);
    });
  });
}
socket.close();
