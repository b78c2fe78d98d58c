/** Measures the latency that the rules of a node add to packets. */
import { execa } from 'execa';
import { endpointAddresses, SERVICE_PORT, TARGET_PORT, vip } from './cluster.ts';
import { jobsOf } from './jobs.ts';
import type { Network } from './network.ts';
import type { PacketJobs } from './packets-process.ts';
import { median } from './table.ts';

export interface ConnectTarget {
  readonly address: string;
  readonly port: number;
}

/** Microseconds per measurement, by round. */
export type LatenciesByRound = readonly (readonly number[])[];

const run = jobsOf<PacketJobs>('packets-process.ts');
const ROUNDS = 5;
/** Connections to each target in each round. */
const COUNT = 300;

/**
 * Targets of new connections, in the order of the rows of the result. `bare` connects to an endpoint
 * before there are rules.
 */
export const PATHS = {
  first: 'to the first VIP',
  last: 'to the last VIP',
  random: 'to a random VIP',
  direct: 'to no Service',
  bare: 'through a node without rules',
} as const;
export type Path = keyof typeof PATHS;
export type Paths = Readonly<Partial<Record<Path, LatenciesByRound>>>;

/**
 * Microseconds of new connections through a node with the rules of `services` ordinary Services.
 */
export async function connectPaths(network: Network, services: number): Promise<Paths> {
  const indices = [0, services - 1, Math.floor(Math.random() * services)];
  const targets = [...indices.map(serviceTarget), directTarget()];
  const [first = [], last = [], random = [], direct = []] = await connectTo(network, targets);
  return { first, last, random, direct };
}

export async function connectBare(network: Network): Promise<Paths> {
  const [bare = []] = await connectTo(network, [directTarget()]);
  return { bare };
}

/** An empty result for `collect`. */
export function noTimes(): Record<Path, number[]> {
  return { first: [], last: [], random: [], direct: [], bare: [] };
}

/** Appends measured values to `times`. @param select returns the values of the rounds to append. */
export function collect(
  times: Record<Path, number[]>,
  paths: Paths,
  select: (rounds: LatenciesByRound) => readonly number[],
): void {
  for (const path of pathNames) times[path].push(...select(paths[path] ?? []));
}

export const pathNames = Object.keys(PATHS) as readonly Path[];

/** VIP and port of Service number `index`. */
export function serviceTarget(index: number): ConnectTarget {
  return { address: vip(index), port: SERVICE_PORT };
}

/** An endpoint's own address, which belongs to no Service. */
export function directTarget(): ConnectTarget {
  return { address: endpointAddresses(0)[0] ?? '', port: TARGET_PORT };
}

async function connectTo(
  network: Network,
  targets: readonly ConnectTarget[],
): Promise<readonly LatenciesByRound[]> {
  const before = await refusals(network);
  const timed = await run(network.client, 'connect', { targets, rounds: ROUNDS, count: COUNT });
  // A REJECT rule on the node would look the same to the client.
  const expected = targets.length * (ROUNDS + 1) * COUNT;
  const seen = (await refusals(network)) - before;
  if (seen !== expected)
    throw new Error(`only ${seen} of ${expected} connections reached an endpoint`);
  return timed;
}

/** Microseconds of a packet of an established connection to an endpoint and of the reply. */
export function echo(network: Network): Promise<LatenciesByRound> {
  const { address } = directTarget();
  return run(network.client, 'echo', { address, rounds: ROUNDS, count: COUNT });
}

/** The median of each round. */
export function medians(rounds: LatenciesByRound): number[] {
  return rounds.map(median);
}

/** Number of TCP segments with RST that the endpoints have sent. */
async function refusals({ endpoints }: Network): Promise<number> {
  const { stdout } = await execa('ip', ['netns', 'exec', endpoints, 'cat', '/proc/net/snmp']);
  const [names, values] = stdout
    .split('\n')
    .filter((line) => line.startsWith('Tcp: '))
    .map((line) => line.split(' '));
  return Number(values?.[names?.indexOf('OutRsts') ?? -1]);
}
