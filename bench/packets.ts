/** What the rules cost the first packet of a connection. */
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { endpointAddresses, SERVICE_PORT, TARGET_PORT, vip } from './cluster.ts';
import { runScript } from './jobs.ts';
import type { Network } from './network.ts';
import { median } from './statistics.ts';

export interface Target {
  readonly address: string;
  readonly port: number;
}

/** Microseconds of each connection, by round. */
export type Rounds = readonly (readonly number[])[];

/** What the process in the client's namespace is asked. */
export interface ConnectRequest {
  readonly targets: readonly Target[];
  readonly rounds: number;
  /** Connections to each target in each round. */
  readonly count: number;
}

/** Microseconds of a new connection: the median of each round. */
export interface PacketPath {
  /** To the VIP whose rule stands first in a flat chain. */
  readonly first: readonly number[];
  /** To the VIP whose rule stands last. */
  readonly last: readonly number[];
  /** To an endpoint's own address, which is no Service's. */
  readonly direct: readonly number[];
}

const CONNECT = fileURLToPath(new URL('connect.ts', import.meta.url));
const ROUNDS = 5;
const COUNT = 300;

/** Measures through a node that has the rules of `services` ordinary Services. */
export async function packetPath(network: Network, services: number): Promise<PacketPath> {
  const [first, last, direct] = await connectTo(network, [
    serviceTarget(0),
    serviceTarget(services - 1),
    directTarget(),
  ]);
  return { first: medians(first), last: medians(last), direct: medians(direct) };
}

/** The same way through a node without rules, as `PacketPath.direct`. */
export async function bareNode(network: Network): Promise<readonly number[]> {
  const [direct] = await connectTo(network, [directTarget()]);
  return medians(direct);
}

/** The VIP of Service number `index`. */
export function serviceTarget(index: number): Target {
  return { address: vip(index), port: SERVICE_PORT };
}

/** An endpoint. */
export function directTarget(): Target {
  return { address: endpointAddresses(0)[0] ?? '', port: TARGET_PORT };
}

function medians(rounds: Rounds | undefined): number[] {
  return (rounds ?? []).map(median);
}

/** Microseconds of new connections to each target. */
export async function connectTo(
  network: Network,
  targets: readonly Target[],
): Promise<readonly Rounds[]> {
  const request: ConnectRequest = { targets, rounds: ROUNDS, count: COUNT };
  const before = await refusals(network);
  const timed = (await runScript(network.client, CONNECT, request)) as number[][][];
  // A REJECT on the node would look the same to the client.
  const expected = targets.length * (ROUNDS + 1) * COUNT;
  const seen = (await refusals(network)) - before;
  if (seen !== expected) throw new Error(`${seen} of ${expected} connections reached an endpoint`);
  return timed;
}

/** TCP segments with RST that the endpoints have sent. */
async function refusals({ endpoints }: Network): Promise<number> {
  const { stdout } = await execa('ip', ['netns', 'exec', endpoints, 'cat', '/proc/net/snmp']);
  const [names, values] = stdout
    .split('\n')
    .filter((line) => line.startsWith('Tcp: '))
    .map((line) => line.split(' '));
  return Number(values?.[names?.indexOf('OutRsts') ?? -1]);
}
