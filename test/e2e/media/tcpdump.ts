/** Captures what a host sends and receives. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Host, waitFor } from '../../lab/lab.ts';
import { packetsOf, readCapture, type Wire } from './capture.ts';

/** A machine under load starts programs slowly. */
const DEADLINE_MS = 30_000;

/** A running capture. */
export interface Capture {
  /** Returns what the capture has so far. */
  read(): Wire;
  /**
   * Waits until the capture has enough UDP packets, and ends it: tcpdump loses the packets that it has not read yet.
   * @throws AssertionError if the kernel dropped packets of the capture; LabError if packets are missing
   */
  finish(atLeast: { readonly sent: number; readonly received: number }): Promise<Wire>;
}

/** Captures all UDP packets and ICMP errors of a host. @param directory for the capture file */
export async function startCapture(host: Host, directory: string): Promise<Capture> {
  const file = join(directory, `${host.name}.pcap`);
  // 32 MiB of buffer; 64 bytes have all headers.
  const size = ['-B', '32768', '-s', '64'];
  const args = ['-i', 'eth0', '-n', '-Z', 'root', '--immediate-mode', '-U', ...size, '-w', file];
  const filter = 'udp or icmp or (icmp6 and ip6[40] < 128)';
  const tcpdump = host.spawn('tcpdump', [...args, filter]);
  let output = '';
  tcpdump.stderr?.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  await waitFor('tcpdump listens', () => output.includes('listening on'), DEADLINE_MS);
  const own = Object.values(host.addresses).flat();
  const read = () => readCapture(readFileSync(file), own);
  return {
    read,
    finish: async (atLeast) => {
      await waitFor(
        `the capture has ${atLeast.sent} sent and ${atLeast.received} received packets`,
        () => {
          const { sent, received } = read();
          return packetsOf(sent) >= atLeast.sent && packetsOf(received) >= atLeast.received;
        },
        DEADLINE_MS,
      );
      tcpdump.kill('SIGINT');
      await tcpdump.catch(() => undefined);
      assert.match(output, /^0 packets dropped by kernel$/m);
      return read();
    },
  };
}

/** UDP entries of connection tracking of nodes. */
export async function trackedUdp(nodes: readonly Host[]): Promise<readonly string[]> {
  const lists = nodes.flatMap((node) =>
    ['ipv4', 'ipv6'].map((family) => node.exec('conntrack', ['-L', '-p', 'udp', '-f', family])),
  );
  return (await Promise.all(lists)).flatMap(({ stdout }) => stdout.split('\n').filter(Boolean));
}
