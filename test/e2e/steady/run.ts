/** Two agents under continuous changes, faults and traffic, with checks while all is quiet. */
import { setTimeout as sleep } from 'node:timers/promises';
import { waitFor } from '../../lab/lab.ts';
import { Random } from '../../random.ts';
import { serviceManifest, sliceManifest } from '../manifests.ts';
import { portwideTables } from '../nft-tables.ts';
import { Population } from '../population.ts';
import { differences, type Held, heldBy, settle, staleFlows } from './checks.ts';
import type { ClientTally, Loss } from './client.ts';
import { type FaultKind, type FaultPeriods, type FlushWindow, SteadyFaults } from './faults.ts';
import { KeptServices } from './kept-services.ts';
import { WrittenObjects } from './objects.ts';
import type { Stage, SteadyNode } from './stage.ts';

export interface SteadyOptions {
  readonly seed: number;
  /** Services that clients use, and Services that come and go. */
  readonly kept: number;
  readonly passing: number;
  /** Rounds of churn; what must hold is checked after each. */
  readonly rounds: number;
  readonly stepsPerRound: number;
  /** Services that change in one step of `STEP_MS`. */
  readonly changesPerStep: number;
  /** Connections a second, of both clients together. */
  readonly connections: number;
  readonly faults: FaultPeriods;
}

/** After a round, while nothing changes. */
export interface QuietPoint {
  readonly drift: readonly string[];
  readonly staleFlows: readonly string[];
  readonly living: Held;
}

/** Traffic through one node. */
export interface Traffic extends ClientTally {
  /** Connections refused while the table lacked what another program had removed. */
  readonly refusedInFlush: number;
  /** Seconds from another program's change until the agent had repaired the table: the longest. */
  readonly longestRepair: number;
}

export interface SteadyReport {
  readonly changes: number;
  readonly syncs: number;
  readonly faults: Readonly<Record<FaultKind | 'restore', number>>;
  readonly traffic: Readonly<Record<'killed' | 'living', Traffic>>;
  readonly quiet: readonly QuietPoint[];
  readonly elements: number;
  /** Elements of the living agent's tables that a new agent does not write, and the other way round. */
  readonly differentElements: readonly string[];
}

export const STEP_MS = 100;
const SHOWN = 10;
const HELD_CONNECTIONS = 40;
const REACH_MS = 120_000;

/**
 * @param onStart called with the process id of the living agent, before anything changes
 * @param onEnd called when nothing changes any longer, before that agent is stopped
 */
export async function runSteady(
  stage: Stage,
  options: SteadyOptions,
  onStart: (livingPid: number) => void = () => {},
  onEnd: () => void = () => {},
): Promise<SteadyReport> {
  const { lab, killed, living, double } = stage;
  const { seed, changesPerStep, stepsPerRound } = options;
  const both = [killed, living];
  const pods = [...lab.pods, ...lab.remotePods];
  const kept = new KeptServices(options.kept, pods, seed);
  const passing = new Population(options.passing, pods, seed + 1);
  const faults = new SteadyFaults(stage, new Random(seed + 2), options.faults);
  const objects = new WrittenObjects(double);
  const barrier = barrierOf(stage, objects);

  const start = async () => {
    const put = [...stage.nodes, ...kept.objects(), ...passing.objects()];
    await objects.write({ put, remove: [] });
    await Promise.all(both.map(({ agent, flags }) => agent.start(flags)));
    await barrier();
    onStart(pidOf(living));
    const sprayed = [...passing.endpoints().keys()].flatMap((address) =>
      [53, 4000, 20_000].map((port) => ({ address, port })),
    );
    const clientOptions = {
      rate: options.connections / both.length,
      tcp: kept.targets('tcp'),
      udp: kept.targets('udp').slice(0, HELD_CONNECTIONS),
      sprayed,
      held: HELD_CONNECTIONS,
    };
    for (const [at, { client }] of both.entries()) {
      await client.call('start', { seed: seed + 3 + at, ...clientOptions });
    }
  };

  let step = 0;
  const churn = async () => {
    const ofKept = Math.ceil(changesPerStep / 3);
    const started = performance.now();
    for (let made = 1; made <= stepsPerRound; made++) {
      step += 1;
      await objects.write(passing.change(changesPerStep - ofKept));
      await objects.write({ put: kept.change(ofKept), remove: [] });
      if (made === Math.floor(stepsPerRound / 2)) await objects.takeSnapshot();
      await faults.step(step);
      await sleep(Math.max(started + made * STEP_MS - performance.now(), 0));
    }
    await faults.end();
    await barrier();
  };

  /** Restores etcd from the snapshot. Writes later objects again once both agents have noticed. */
  let restores = 0;
  const restore = async () => {
    await double.call('close');
    await double.call('restore');
    await double.call('listen');
    await barrier();
    await objects.writeAgain();
    await barrier();
    restores += 1;
  };

  const look = async (): Promise<QuietPoint> => {
    const endpoints = new Map([...kept.endpoints(), ...passing.endpoints()]);
    const keptUdp = new Set(kept.targets('udp').map(({ address }) => address));
    const settled = async (check: (node: SteadyNode) => Promise<readonly string[]>) =>
      (await Promise.all(both.map((node) => settle(() => check(node))))).flat();
    const drift = await settled(differences);
    const stale = await settled(({ host }) => staleFlows(host, endpoints, keptUdp));
    // etcd compacts its history, too.
    await double.call('compact');
    faults.readLogs();
    return { drift, staleFlows: stale, living: heldBy(pidOf(living)) };
  };

  await start();
  const quiet: QuietPoint[] = [];
  for (let round = 1; round <= options.rounds; round++) {
    await churn();
    if (round % 2 === 0) await restore();
    quiet.push(await look());
  }
  const [ofKilled, ofLiving] = await Promise.all(both.map(({ client }) => client.call('stop')));
  if (!living.agent.runsWith(living.flags)) throw new Error('the agent that must live has ended');
  onEnd();
  const { windows, counts, syncs } = faults;
  return {
    changes: step * changesPerStep,
    syncs,
    faults: { ...counts, restore: restores },
    traffic: {
      killed: trafficOf(ofKilled as ClientTally, killed, windows),
      living: trafficOf(ofLiving as ClientTally, living, windows),
    },
    quiet,
    ...(await compareTables(living)),
  };
}

/** What does not hold; memory excepted. */
export function failuresOf({ traffic, quiet, differentElements }: SteadyReport): string[] {
  const [first] = quiet;
  const grown = quiet.flatMap(({ living }, at) =>
    (['threads', 'descriptors'] as const)
      .filter((each) => living[each] > (first?.living[each] ?? 0) + SPARE[each])
      .map(
        (each) =>
          `${living[each]} ${each} after round ${at + 1}, ${first?.living[each]} after the first`,
      ),
  );
  return [
    ...Object.values(traffic).flatMap(({ lost }) => lost.slice(0, SHOWN).map(({ what }) => what)),
    ...quiet.flatMap(({ drift }) => drift),
    ...quiet.flatMap((point) => point.staleFlows),
    ...grown,
    ...differentElements,
  ];
}

/** Allowed growth since the first round: a request or a netlink dump may be in progress. */
const SPARE: Held = { threads: 0, descriptors: 4 };

function trafficOf(
  tally: ClientTally,
  { host }: SteadyNode,
  windows: readonly FlushWindow[],
): Traffic {
  const own = windows.filter((window) => window.host === host.name);
  const isInFlush = (loss: Loss) =>
    loss.isRefused && own.some(({ from, until }) => loss.until >= from && loss.from <= until);
  const lost = tally.lost.filter((loss) => !isInFlush(loss));
  return {
    ...tally,
    lost,
    refusedInFlush: tally.lost.length - lost.length,
    longestRepair: Math.max(0, ...own.map(({ from, until }) => (until - from) / 1000)),
  };
}

/**
 * Waits until both agents have everything written before: until a Service that is written last answers, on a VIP that
 * is new each time.
 */
function barrierOf({ lab, killed, living }: Stage, objects: WrittenObjects): () => Promise<void> {
  let calls = 0;
  return async () => {
    calls += 1;
    const vip = `10.96.200.${calls}`;
    const put = [
      serviceManifest('barrier', { spec: { clusterIPs: [vip], ports: [{ port: 9 }] } }),
      sliceManifest('barrier', 4, lab.pods.slice(0, 1), { ports: [{ name: '', port: 9 }] }),
    ];
    await objects.write({ put, remove: [] });
    const answers = async ({ clientHost }: SteadyNode) =>
      (await clientHost.tcp(vip, 9, { timeoutMs: 200 })).outcome === 'answered';
    for (const node of [killed, living]) {
      await waitFor(`${node.host.name} has all objects`, () => answers(node), REACH_MS);
    }
  };
}

/** Compares the table that has lived through everything with the table that a new agent writes. */
async function compareTables({ host, agent }: SteadyNode) {
  const survived = await elementsOf(host);
  await agent.kill();
  await host.exec('nft', ['flush', 'ruleset']);
  await agent.start();
  const fresh = await elementsOf(host);
  return {
    elements: survived.length,
    differentElements: [
      ...without(survived, fresh).map((line) => `stale element: ${line}`),
      ...without(fresh, survived).map((line) => `missing element: ${line}`),
    ],
  };
}

/** Chains of numbers of endpoints that no Service has any longer stay until the next full sync. */
async function elementsOf(host: SteadyNode['host']): Promise<readonly string[]> {
  return (await portwideTables(host)).filter((line) => line.includes(' : '));
}

function without(some: readonly string[], others: readonly string[]): readonly string[] {
  const known = new Set(others);
  return some.filter((line) => !known.has(line)).slice(0, SHOWN);
}

function pidOf({ host, agent }: SteadyNode): number {
  if (agent.pid === undefined) throw new Error(`the agent of ${host.name} does not run`);
  return agent.pid;
}
