/**
 * Measures how long a client waits for a new Service: from the write to the API server until an
 * endpoint accepts a connection. The Service comes first and its EndpointSlice a moment later, as in a
 * cluster.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../test/random.ts';
import { clusterObjects } from './agents.ts';
import { apiObjects } from './api-objects.ts';
import { type ApiServer, apiServerVersion, withServedNode } from './api-servers.ts';
import { spareAddress } from './cluster.ts';
import { numberFlag, printHead, repeat, runBench, runsFlag, servicesFlag } from './harness.ts';
import { timeNewService, withAccepted } from './new-services.ts';
import { serviceTarget } from './packets.ts';
import { cpuSeconds } from './processes.ts';
import { kubeProxyVersion, type Program, programsFlag, WHERE } from './programs.ts';
import { now, type Reached } from './reached.ts';
import { cell, percentiles, printRow } from './table.ts';

const LEGEND = `Milliseconds from the write of a new Service's EndpointSlice (10 endpoints) until an endpoint accepts a
connection to its VIP. Its Service was written 0 to 20 ms before. Alone: 50 to 550 ms after the last
change. In a storm: meanwhile, one endpoint of another Service changes every 5 ms. CPU of the agent in percent of a core, without the commands that it
runs.`;

/** Milliseconds between two changes in a storm. */
const STORM_PERIOD = 5;
const SEED = 1;

interface Latencies {
  readonly times: readonly number[];
  /** Percent of a core. */
  readonly cpu: number;
}

interface Sizes {
  readonly services: number;
  readonly changes: number;
}

await runBench({
  name: 'latency',
  where: WHERE,
  flags: {
    services: servicesFlag('1000,5000,10000', { quick: '1000' }),
    changes: numberFlag('number of new Services', '100', { quick: '30' }),
    programs: programsFlag('portwide-nftables'),
    runs: runsFlag('1'),
  },
  run: async ({ services: sizes, programs, changes, runs }) => {
    printHead(LEGEND, [...(await kubeProxyVersion()), await apiServerVersion()]);
    printRow('program', 'Services', 'alone, ms', 'CPU, %', 'storm, ms', 'CPU, %');
    console.log('|---|---:|---:|---:|---:|---:|');
    for (const program of programs) {
      for (const services of sizes) {
        const measured = await repeat(runs, `${program.name}, ${services} Services`, () =>
          measure(program, { services, changes }),
        );
        const cells = (['alone', 'storm'] as const).flatMap((when) => {
          const times = measured.flatMap((run) => run[when].times);
          const cpu = measured.map((run) => run[when].cpu);
          return [percentiles(times, 1), cell(cpu, 1)];
        });
        printRow(program.name, services, ...cells);
      }
    }
  },
});

function measure(program: Program, { services, changes }: Sizes) {
  return withServedNode([...clusterObjects(services)], async (node) => {
    const { network, server, spawn, directory } = node;
    return await withAccepted(network, async (reached) => {
      const { path, args, env } = program.command(server.kubeconfig, directory);
      const { pid } = spawn(path, args, { ...(env && { env }) });
      if (pid === undefined) throw new Error(`${path} did not start`);
      await reached(serviceTarget(services - 1));
      return await measureChanges({ pid, reached, server }, { services, changes });
    });
  });
}

interface Subject {
  readonly pid: number;
  readonly reached: Reached;
  readonly server: ApiServer;
}

async function measureChanges({ pid, reached, server }: Subject, { services, changes }: Sizes) {
  const random = new Random(SEED);
  const round = async (first: number): Promise<Latencies> => {
    const [began, before] = [now(), cpuSeconds(pid)];
    const times: number[] = [];
    for (let index = first; index < first + changes; index++) {
      times.push(await timeNewService(index, { server, reached, random }));
    }
    return { times, cpu: (100_000 * (cpuSeconds(pid) - before)) / (now() - began) };
  };
  const alone = await round(services);
  const storm = startStorm(server, services);
  const during = await round(services + changes);
  await storm.stop();
  return { alone, storm: during };
}

/** Changes an endpoint of one Service after the other. */
function startStorm(server: ApiServer, services: number): { readonly stop: () => Promise<void> } {
  const stopping = new AbortController();
  const began = now();
  const run = async () => {
    for (let made = 0; !stopping.signal.aborted; made++) {
      const [, slice] = apiObjects(made % services);
      const address = spareAddress(Math.floor(made / services));
      await server.put({ ...slice, endpoints: [{ addresses: [address] }] });
      await sleep(Math.max(began + made * STORM_PERIOD - now(), 0));
    }
  };
  const running = run();
  return {
    stop: async () => {
      stopping.abort();
      await running;
    },
  };
}
