/** What network policy costs packets. */
import { fileURLToPath } from 'node:url';
import { runScript } from './jobs.ts';
import type { Network } from './network.ts';
import { connectTo, directTarget, type Rounds } from './packets.ts';

/** What the process in the client's namespace is asked. */
export interface EchoRequest {
  readonly address: string;
  readonly rounds: number;
  readonly count: number;
}

/** Microseconds of each. */
export interface PacketCost {
  /** connect(), refused by the endpoint. */
  readonly opening: readonly number[];
  /** A packet there and one back, of a connection that is known. */
  readonly established: readonly number[];
}

const ECHO = fileURLToPath(new URL('echo.ts', import.meta.url));
const ROUNDS = 5;
const COUNT = 300;

/** Through the node as it is. */
export async function packetCost(network: Network): Promise<PacketCost> {
  const target = directTarget();
  const [opening = []] = await connectTo(network, [target]);
  const request: EchoRequest = { address: target.address, rounds: ROUNDS, count: COUNT };
  const established = (await runScript(network.client, ECHO, request)) as Rounds;
  return { opening: opening.flat(), established: established.flat() };
}
