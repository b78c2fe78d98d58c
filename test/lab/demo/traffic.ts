/** Steady traffic to the Services of `make demo-ui`. */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import type { HeldConnection } from '../lab.ts';
import type { DemoEnvironment } from './environment.ts';
import { randomPorts } from './random.ts';

/** VIPs and ports of services.yaml. */
const WEB = ['10.96.0.60', 'fd00:10:96::60'] as const;
const SEARCH = '10.96.0.61';
const LOBBY = '203.0.113.62';
const MEDIA = '10.96.0.63';
/** The port ranges of examples/port-ranges.yaml and of the network policy, and the first port after the range. */
const RTP = { first: 20_000, count: 101, rejected: 20_101 };
const MEDIA_PORTS = { first: 20_000, count: 30_001 };

const SEED = 7;
/** Connections that stay open, each on another port. */
const HELD = 16;
const RANDOM_PORTS = 500;
/** A policy or a rule that drops packets lets probes wait for this time. */
const QUIET = { timeoutMs: 300 };

/** One kind of traffic: milliseconds between steps, and a step. */
type Flow = readonly [periodMs: number, step: (count: number) => Promise<unknown>];

export interface Traffic {
  /** Number of steps that failed: a network fault that the user injects does not end the traffic. */
  errors(): number;
  /** Resolves when no step runs any longer. */
  stop(): Promise<void>;
}

/**
 * Starts about 25 connections a second. Some of them are rejected or denied.
 * @param onError called for the first failed step of a kind of traffic since one succeeded.
 */
export function startTraffic(stage: DemoEnvironment, onError: (error: unknown) => void): Traffic {
  const stopped = new AbortController();
  const { signal } = stopped;
  let errors = 0;
  const run = async ([periodMs, step]: Flow) => {
    let isFailing = false;
    for (let count = 0; !signal.aborted; count += 1) {
      try {
        await step(count);
        isFailing = false;
      } catch (error) {
        if (signal.aborted) return;
        errors += 1;
        if (!isFailing) onError(error);
        isFailing = true;
      }
      await sleep(periodMs, undefined, { signal }).catch(() => undefined);
    }
  };
  const runs = flows(stage).map(run);
  return {
    errors: () => errors,
    stop: async () => {
      stopped.abort();
      await Promise.allSettled(runs);
    },
  };
}

function flows(stage: DemoEnvironment): Flow[] {
  const { lab, allPorts, portRanges } = stage;
  const { client } = lab;
  const [first, second, third, , phone] = lab.pods;
  assert.ok(first && second && third && phone);
  const [vip, vip6] = allPorts.vips;
  const [ranges] = portRanges.vips;
  const ports = randomPorts(SEED, RANDOM_PORTS);
  const portOf = (count: number) => ports[count % ports.length] ?? 0;
  const held: HeldConnection[] = [];
  return [
    [200, (count) => client.tcp(WEB[count % 2] ?? WEB[0], 80)],
    [300, () => third.tcp(WEB[0], 80)],
    [250, (count) => client.udp(count % 4 === 0 ? vip6 : vip, portOf(count))],
    [400, (count) => second.tcp(vip, portOf(3 * count))],
    [250, (count) => phone.udp(MEDIA, MEDIA_PORTS.first + ((17 * count) % MEDIA_PORTS.count))],
    [250, (count) => first.udp(ranges, RTP.first + (count % RTP.count))],
    [500, () => client.tcp(LOBBY, 7777)],
    [2000, () => client.udp(ranges, RTP.rejected, QUIET)],
    [2000, () => client.tcp(SEARCH, 9200, QUIET)],
    [2000, () => second.tcp(MEDIA, 22, QUIET)],
    [3000, () => client.tcp(MEDIA, 443, QUIET)],
    [
      1000,
      async (count) => {
        const index = count % HELD;
        if (held[index]?.alive !== true) held[index] = await client.hold(vip, portOf(index));
        for (const connection of held) {
          if (connection.alive) await connection.exchange('x'.repeat(1000));
        }
      },
    ],
    [
      15_000,
      async (count) =>
        stage.keepEndpoints(portRanges, count % 2 === 0 ? [first, second] : [second]),
    ],
  ];
}
