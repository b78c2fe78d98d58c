/**
 * Measures ports owned by pods: the load of many slices, single changes, and packets of owned UDP ports, of an ordinary
 * Service, and of no Service. Results go to standard output as Markdown, progress to standard error.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { IN_NAMESPACES, numberFlag, printHead, repeat, runBench, runsFlag } from './harness.ts';
import { jobsOf } from './jobs.ts';
import { CLIENT_ADDRESS, type Network, UDP_SINK, withNetwork } from './network.ts';
import { EXACT, type OwnedJobs, ownedVip, owner, RANGES } from './owned-process.ts';
import type { PacketJobs, Peer } from './packets-process.ts';
import { cell, percentiles, printRow, ratio } from './table.ts';

const LEGEND = `Mode nftables, IPv4, slices of 100 UDP ports; packets also with slices of 128, which one exact lookup finds. "nft" is \`nft -f\` of a file with the same elements. A change replaces one
pod by a pod with another address. Packets have 172 bytes of data (RTP, 20 ms of G.711) and cross client, node and endpoint
on one core within one system call, so that their time is CPU time. Calls send one packet each in turn. A ratio is the other value divided by that of
owned ports.`;

const run = jobsOf<OwnedJobs>('owned-process.ts');
const runPackets = jobsOf<PacketJobs>('packets-process.ts');
const CLIENT_PORT = 9000;

async function measureLoad(services: number, slices: number, runs: number): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
  const path = join(directory, 'script.nft');
  try {
    const elements = await withNetwork(({ node }) =>
      run(node, 'script', { services, slices, path }),
    );
    const alone: number[] = [];
    const agents = await repeat(runs, `${services} x ${slices} slices`, async () => {
      alone.push(await withNetwork(({ node }) => run(node, 'nft', { path })));
      return await withNetwork(({ node }) =>
        run(node, 'agent', { services, slices, changes: 200 }),
      );
    });
    const starts = agents.map(({ start }) => start / 1000);
    const seconds = alone.map((time) => time / 1000);
    const what = `${services} Services with ${slices} slices (${elements} elements)`;
    printRow(`load ${what}, s`, cell(starts, 2), cell(seconds, 2), ratio(starts, seconds));
    const stalls = agents.map(({ stall }) => stall);
    printRow('– longest stall, ms', cell(stalls, 0), '', '');
    const times = agents.flatMap((agent) => agent.times);
    printRow('one change, ms', percentiles(times, 2), '', '');
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function conntrackEntries({ node }: Network): Promise<number> {
  const { stdout } = await execa('ip', ['netns', 'exec', node, 'conntrack', '-C']);
  return Number(stdout);
}

/** Rows: from clients, from endpoints, with one call and with many. Columns: owned, ordinary Service, no Service. */
async function measurePackets(shape: typeof RANGES, batches: number, calls: number): Promise<void> {
  await withNetwork(async (network) => {
    const { node, client, endpoints } = network;
    await execa('ip', ['netns', 'exec', endpoints, 'sysctl', '-qw', 'net.ipv4.ip_nonlocal_bind=1']);
    for (const end of [client, endpoints])
      await execa('ip', ['netns', 'exec', end, 'nft', '-f', '-'], { input: UDP_SINK });
    await run(node, 'program', { shape });
    const owners = [owner(0, 0), owner(1, 0), owner(2, 0)];
    const [, , direct = ''] = owners;
    const vips = [ownedVip(0), ownedVip(1), direct];
    const ends = (addresses: readonly string[]): Peer[] =>
      addresses.map((address) => ({ address, port: shape.first, ports: 1 }));
    for (const ports of [1, calls]) {
      const clients = vips.map((_, at) => ({
        address: CLIENT_ADDRESS,
        port: CLIENT_PORT + at * calls,
        ports,
      }));
      const entries: number[] = [];
      for (const at of vips.keys()) {
        const before = await conntrackEntries(network);
        const [from, to] = [clients.slice(at, at + 1), ends(vips).slice(at, at + 1)];
        await runPackets(client, 'stream', { from, to, batches: 1 });
        entries.push((await conntrackEntries(network)) - before);
      }
      // With answers, tracked calls are established, as they are in use.
      await runPackets(endpoints, 'stream', { from: ends(owners), to: clients, batches: 1 });
      const forward = await runPackets(client, 'stream', {
        from: clients,
        to: ends(vips),
        batches,
      });
      const back = await runPackets(endpoints, 'stream', {
        from: ends(owners),
        to: clients,
        batches,
      });
      const count = `slices of ${shape.portsPerPod}, ${ports === 1 ? 'one call' : `${ports} calls`}`;
      for (const [what, times] of [
        [`packet from a client, ${count}, µs`, forward],
        [`packet from a pod, ${count}, µs`, back],
      ] as const) {
        const [ours = [], ...others] = times;
        const compared = others.flatMap((each) => [cell(each, 2), ratio(ours, each)]);
        printRow(what, cell(ours, 2), ...compared);
      }
      const [ours, ...others] = entries;
      printRow(`conntrack entries, ${count}`, ours ?? '', ...others.flatMap((each) => [each, '']));
    }
  });
}

await runBench({
  name: 'owned',
  where: IN_NAMESPACES,
  flags: {
    services: numberFlag('number of Services', '1000', { quick: '100' }),
    slices: numberFlag('slices of each Service', '100'),
    batches: numberFlag('batches of packets', '300', { quick: '100' }),
    calls: numberFlag('calls at a time', '4000'),
    runs: runsFlag('3', { quick: '1' }),
  },
  run: async ({ services, slices, batches, calls, runs }) => {
    const { stdout } = await execa('nft', ['--version']);
    printHead(LEGEND, [stdout]);
    console.log('| what | Portwide | nft | × |\n|---|---:|---:|---:|');
    await measureLoad(services, slices, runs);
    console.log(
      '\n| what | owned | ordinary Service | × | no Service | × |\n|---|---:|---:|---:|---:|---:|',
    );
    for (const shape of [EXACT, RANGES]) await measurePackets(shape, batches, calls);
  },
});
