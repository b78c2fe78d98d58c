/**
 * Measures packets of a Service with and without --nftables-flowtable: in a stock kernel under QEMU with PORTWIDE_KERNEL=6.12,
 * otherwise in the kernel of the machine. Prints Markdown; progress goes to standard error, except under QEMU.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { bootUml, INSIDE } from '../test/uml/boot.ts';
import { STOCK_KERNEL } from '../test/uml/kernels.ts';
import { IN_NAMESPACES, numberFlag, printHead, runBench } from './harness.ts';
import { jobsOf } from './jobs.ts';
import { CLIENT_ADDRESS, type Network, UDP_SINK, withNetwork } from './network.ts';
import { type OwnedJobs, ownedVip, owner, RANGES } from './owned-process.ts';
import type { PacketJobs, Peer } from './packets-process.ts';
import { cell, percentile, printRow, ratio } from './table.ts';

const LEGEND = `Mode nftables, IPv4, one UDP connection of an ordinary Service with 172 bytes of data in each packet. A packet crosses client, node and
endpoint on one core within one system call, so that its time is CPU time. Rounds with and without the flowtable take turns. A round counts with its
10th percentile, because other work on the machine delays batches. Medians of the rounds, with minimum and maximum.`;

const SCRIPT = fileURLToPath(import.meta.url);
const TIMEOUT_SECONDS = 3600;
const run = jobsOf<OwnedJobs>('owned-process.ts');
/** On one core, whose queues keep the order of packets. */
const runPackets = jobsOf<PacketJobs>('packets-process.ts', ['taskset', '-c', '0']);
const CLIENT: Peer = { address: CLIENT_ADDRESS, port: 9000, ports: 1 };
const VIP: Peer = { address: ownedVip(1), port: RANGES.first, ports: 1 };
const ENDPOINT: Peer = { ...VIP, address: owner(1, 0) };
/** Percentile of the batches of a round. */
const FAST = 10;
const PACKETS = 200;
/** Batches that `stream` discards. */
const DISCARDED = 2;

/** Runs this script in the stock kernel, and prints its output. */
async function measureInside(rounds: number, batches: number): Promise<void> {
  const kernel = bootUml({
    command: [
      ...['env', `NODE_COMPILE_CACHE=${INSIDE}/compile-cache`],
      ...['node', SCRIPT, `--rounds=${rounds}`, `--batches=${batches}`],
    ],
    timeoutSeconds: TIMEOUT_SECONDS,
  });
  try {
    while (kernel.ended === undefined) await sleep(500);
    if (kernel.read('status').trim() !== '0') throw new Error(kernel.output());
    process.stdout.write(kernel.read('output'));
  } finally {
    await kernel.stop();
  }
}

async function measure(rounds: number, batches: number): Promise<void> {
  const times = { client: [[], []], endpoint: [[], []] } as Record<string, [number[], number[]]>;
  await withNetwork(async (fast) => {
    await withNetwork(async (slow) => {
      const networks = [fast, slow];
      for (const network of networks) await prepare(network, network === fast);
      for (let round = 0; round < rounds; round++) {
        for (const [at, network] of networks.entries()) {
          const [toVip, toClient] = await exchange(network, batches);
          times.client?.[at]?.push(percentile(toVip, FAST));
          times.endpoint?.[at]?.push(percentile(toClient, FAST));
          const isOffloaded = (await connection(network)).includes('[OFFLOAD]');
          if (isOffloaded !== (network === fast))
            throw new Error(`the connection is ${isOffloaded ? '' : 'not '}in a flowtable`);
        }
        console.error(`round ${round + 1} of ${rounds}: ${JSON.stringify(times)}`);
      }
    });
  });
  for (const [from, [ours, theirs]] of Object.entries(times))
    printRow(`packet from the ${from}, µs`, cell(ours, 1), cell(theirs, 1), ratio(ours, theirs));
}

/** Programs the Service and establishes the connection. */
async function prepare(network: Network, usesFlowtable: boolean): Promise<void> {
  const { node, client, endpoints } = network;
  await inside(endpoints, ['sysctl', '-qw', 'net.ipv4.ip_nonlocal_bind=1']);
  await inside(node, ['sysctl', '-qw', 'net.netfilter.nf_conntrack_acct=1']);
  for (const end of [client, endpoints]) await inside(end, ['nft', '-f', '-'], UDP_SINK);
  await run(node, 'program', { shape: RANGES, usesFlowtable });
  await exchange(network, 1);
}

/** Microseconds of a packet from the client and from the endpoint. @throws Error if packets are lost. */
async function exchange({ client, endpoints }: Network, batches: number) {
  const stream = async (source: string, sink: string, from: Peer, to: Peer, last: string) => {
    const before = await received(sink);
    const request = { from: [from], to: [to], batches, packets: PACKETS, last };
    const [times = []] = await runPackets(source, 'stream', request);
    const sent = (batches + DISCARDED) * PACKETS;
    const arrived = (await received(sink)) - before;
    if (arrived !== sent) throw new Error(`${arrived} of ${sent} packets arrived`);
    return times;
  };
  return [
    await stream(client, endpoints, CLIENT, VIP, ENDPOINT.address),
    await stream(endpoints, client, ENDPOINT, CLIENT, CLIENT.address),
  ] as const;
}

async function received(sink: string): Promise<number> {
  const text = await inside(sink, ['nft', 'list', 'counter', 'ip', 'sink', 'received']);
  return Number(/packets (\d+)/.exec(text)?.[1]);
}

async function connection({ node }: Network): Promise<string> {
  const port = String(CLIENT.port);
  return await inside(node, ['conntrack', '-L', '-p', 'udp', '--orig-port-src', port]);
}

async function inside(namespace: string, command: readonly string[], input = ''): Promise<string> {
  const { stdout } = await execa('ip', ['netns', 'exec', namespace, ...command], { input });
  return stdout;
}

await runBench({
  name: 'flowtable',
  where: `${IN_NAMESPACES} PORTWIDE_KERNEL=6.12 boots this kernel, see test/uml/kernels.ts.`,
  flags: {
    rounds: numberFlag('rounds of each variant', '7', { quick: '3' }),
    batches: numberFlag('batches of packets in a round', '300', { quick: '30' }),
  },
  run: async ({ rounds, batches }) => {
    if (STOCK_KERNEL !== undefined) return await measureInside(rounds, batches);
    printHead(LEGEND);
    console.log('| what | flowtable | rules only | × |\n|---|---:|---:|---:|');
    await measure(rounds, batches);
  },
});
