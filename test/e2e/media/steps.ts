/** Steps of the media demo. Each verifies what it prints. */
import assert from 'node:assert/strict';
import { grouped, heading, print, table } from '../../lab/demo/text.ts';
import { type Host, waitFor } from '../../lab/lab.ts';
import { type CallCounts, lost, lostSoFar } from './calls.ts';
import { packetsOf, type Wire } from './capture.ts';
import type { MediaPod, MediaStage } from './stage.ts';

/** Packets of each direction of each call that a step waits for: a second of media. */
const PACKETS = 50;
const DEADLINE_MS = 30_000;
/** New calls while something is not as usual. */
const FEW = 6;
/** The chance that none of so many new calls reaches one pod of three is 3e-11. */
const MOST_ATTEMPTS = 60;

/** Packets of calls while their pod ran, both directions. */
interface Total {
  calls: number;
  sent: number;
  received: number;
  lost: number;
}

/** What the steps remember. */
export interface Media {
  readonly stage: MediaStage;
  /** By ordinal. */
  readonly totals: Total[];
  /** `address port` of all that the relays announced. */
  readonly announced: Set<string>;
  /** Packets that calls sent to a pod that had ended. */
  sentTooLate: number;
}

const familyOf = (index: number): 4 | 6 => (index % 2 === 0 ? 4 : 6);

/** Starts agents and relays. */
export async function showStage(stage: MediaStage): Promise<Media> {
  heading('Three TURN relays behind one VIP: examples/media-server.yaml');
  await stage.start();
  const { vips, first, perPod } = stage.example;
  table([
    ['VIP:', `${vips[4]} and ${vips[6]}`],
    ...stage.pods.map(({ ordinal, host }) => {
      const start = first + ordinal * perPod;
      return [`media-${ordinal}:`, whereOf(stage, host), `owns ${start}-${start + perPod - 1}/UDP`];
    }),
  ]);
  print(
    'Each pod runs coturn with the command of the StatefulSet. A client outside asks port 3478 of the',
    'VIP for a relayed port; Portwide spreads this over the pods. The pod answers with VIP:port.',
  );
  const totals = stage.pods.map(() => ({ calls: 0, sent: 0, received: 0, lost: 0 }));
  return { stage, totals, announced: new Set(), sentTooLate: 0 };
}

function whereOf(stage: MediaStage, host: Host): string {
  return `${host.ipv4} on ${stage.lab.pods.includes(host) ? 'node' : 'node2'}`;
}

/** Places the calls, and waits until media flows. */
export async function showCalls(media: Media, count: number): Promise<void> {
  heading(`${count} calls with media in both directions, half of them over IPv6`);
  await place(media, count);
  const seconds = await flow(media);
  print(
    'Each end of a call sends an RTP packet every 20 ms: the caller through the relay, the far end to',
    `the port of the VIP that the relay announced. After ${seconds} s:`,
  );
  const counts = await media.stage.calls.count();
  printCalls(media, counts);
  await assertUntracked(media);
}

/** Kills the agents while media flows, and starts them again. */
export async function showKill(media: Media): Promise<void> {
  const { stage } = media;
  heading('kill -9 of the agents of both nodes');
  const before = received(await stage.calls.count());
  await stage.killAgents();
  await flow(media);
  await place(media, FEW);
  await flow(media);
  const between = received(await stage.calls.count());
  print(
    `Without agents: ${grouped(between - before)} packets received, 0 lost; ${FEW} new calls work too.`,
  );
  await stage.startAgents();
  await stage.apply();
  await flow(media);
  const after = received(await stage.calls.count());
  print(`While they start again: ${grouped(after - between)} packets received, 0 lost.`);
  await assertUntracked(media);
}

/** Introduces the rollout. */
export function introduceRollout(): void {
  heading('A rollout: each pod ends, and its successor has another address');
  print(
    'While a pod terminates, its calls go on, and new calls go to other pods. Once it is gone, packets',
    'to its ports are rejected, until its successor of the same ordinal has the ports.',
  );
}

/** Replaces a pod by a successor of the same ordinal with another address. */
export async function showSuccessor(media: Media, pod: MediaPod, next: Host): Promise<void> {
  const { stage } = media;
  const { calls, pods } = stage;
  const { ordinal } = pod;
  const name = `media-${ordinal}`;
  const owned = async () =>
    (await calls.count()).filter(({ port }) => stage.ownerOf(port) === ordinal);

  pod.isTerminating = true;
  await stage.apply();
  const elsewhere = await place(media, FEW);
  assert.deepEqual(
    elsewhere.filter(({ port }) => stage.ownerOf(port) === ordinal),
    [],
    `no new call reaches ${name}, which terminates`,
  );
  await flow(media);

  // Nothing was lost until this moment. What is sent from now on is lost with the pod.
  const last = await owned();
  record(media, ordinal, last, (call) => call.out.next + call.back.next, lostSoFar);
  await stage.stopServer(pod);
  const ended = await calls.hangUp(
    last.map(({ id }) => id),
    false,
  );
  const late = sum(ended, lost);
  media.sentTooLate += late;
  pods.splice(ordinal, 1);
  await stage.apply();
  const [{ family, port } = { family: 4, port: 0 } as const] = last;
  const vacant = await stage.lab.client.udp(stage.example.vips[family], port);
  assert.equal(vacant.outcome, 'refused', `nobody gets packets to the ports of ${name}`);

  const successor: MediaPod = { ordinal, host: next, isTerminating: false };
  await stage.startServer(successor);
  pods.splice(ordinal, 0, successor);
  await stage.apply();
  await place(media, last.length);
  for (let attempt = 0; (await owned()).length === 0; attempt++) {
    assert.ok(attempt < MOST_ATTEMPTS, `a new call reaches the successor of ${name}`);
    await place(media, 1);
  }
  await flow(media);
  const now = await calls.count();
  const others = now.filter((call) => stage.ownerOf(call.port) !== ordinal);
  assert.equal(sum(now, lostSoFar), 0);
  print(
    `${name}: its successor ${whereOf(stage, next)} serves ${now.length - others.length} calls.`,
    `   ${last.length} calls ended with the pod, which relayed them: ${late} packets lost.`,
    `   ${others.length} calls of other pods: 0 lost.`,
  );
  await assertUntracked(media);
}

/** Ends all calls, and prints the totals. @returns packets of all calls while their pod ran */
export async function showTotals(media: Media): Promise<Pick<Total, 'sent' | 'received'>> {
  const { stage, totals } = media;
  heading('All calls end');
  const now = await stage.calls.count();
  const last = await stage.calls.hangUp(
    now.map(({ id }) => id),
    true,
  );
  for (const ordinal of totals.keys()) {
    const its = last.filter(({ port }) => stage.ownerOf(port) === ordinal);
    record(media, ordinal, its, ({ out, back }) => out.sent + back.sent, lost);
  }
  const all = (field: keyof Total) => totals.reduce((total, each) => total + each[field], 0);
  print('Packets of calls while their pod ran, both directions:');
  table([
    ['pod', 'calls', 'sent', 'received', 'lost'],
    ...totals.map((total, ordinal) => [`media-${ordinal}`, ...cells(total)]),
    ['all', ...(['calls', 'sent', 'received', 'lost'] as const).map((name) => grouped(all(name)))],
  ]);
  print(
    `Besides, ${media.sentTooLate} packets were lost on their way through the three pods that ended.`,
  );
  return { sent: all('sent'), received: all('received') };
}

/** Prints what the capture at the client has. */
export function showWire({ stage, announced }: Media, wire: Wire): void {
  heading('On the wire of the client (tcpdump, all UDP packets and ICMP errors)');
  for (const [seen, what] of [
    [wire.received, 'received from'],
    [wire.sent, 'sent to'],
  ] as const) {
    const strange = [...seen.keys()].filter((far) => !announced.has(far));
    assert.deepEqual(strange, [], `UDP packets are ${what} announced ports of the VIP only`);
    const vips = new Set([...seen.keys()].map((far) => far.split(' ')[0]));
    print(
      `${grouped(packetsOf(seen))} packets ${what} ${seen.size} ports of ${[...vips].toSorted().join(' and ')},`,
    );
  }
  print('and no UDP packet from or to another address: none shows a pod or a node.');
  const { lab, example } = stage;
  const errorsFrom = (addresses: readonly string[]) =>
    [...wire.others]
      .filter(([other]) => addresses.includes(other.split(' ')[1] ?? ''))
      .reduce((total, [, count]) => total + count, 0);
  const addressesOf = (hosts: readonly Host[]) => hosts.flatMap(({ ipv4, ipv6 }) => [ipv4, ipv6]);
  const fromPods = errorsFrom(addressesOf([...lab.pods, ...lab.remotePods]));
  assert.equal(fromPods, 0, 'no ICMP error has the address of a pod');
  print(
    'ICMP errors about packets to pods that had ended; a node rejects with its own address:',
    `   ${errorsFrom(Object.values(example.vips))} from the VIP, ${errorsFrom(addressesOf([lab.node, lab.node2]))} from nodes, 0 from pods.`,
  );
}

/** Places calls and waits until each has media in both directions. */
async function place(media: Media, count: number): Promise<readonly CallCounts[]> {
  const { stage, announced } = media;
  const families = Array.from({ length: count }, (_, index) => familyOf(index));
  const placed = await stage.calls.place(families);
  for (const { family, port } of placed) {
    const vip = stage.example.vips[family];
    announced.add(`${vip} 3478`).add(`${vip} ${port}`);
  }
  return placed;
}

/**
 * Waits until each end of each call received a second of media more, and verifies that nothing was lost.
 * @returns the time in seconds
 */
async function flow({ stage }: Media): Promise<string> {
  const { calls } = stage;
  const started = performance.now();
  const first = new Map((await calls.count()).map((call) => [call.id, call]));
  const counts = await waitFor(
    'media flows in both directions of all calls',
    async () => {
      const now = await calls.count();
      const isFlowing = now.every(({ id, out, back }) => {
        const before = first.get(id);
        return (
          out.received >= (before?.out.received ?? 0) + PACKETS &&
          back.received >= (before?.back.received ?? 0) + PACKETS
        );
      });
      return isFlowing ? now : undefined;
    },
    DEADLINE_MS,
  );
  for (const call of counts) {
    const faults = [lostSoFar(call), call.errors, call.out.duplicates, call.back.duplicates];
    assert.deepEqual(faults, [0, 0, 0, 0], `lost, errors, duplicates of ${JSON.stringify(call)}`);
  }
  return ((performance.now() - started) / 1000).toFixed(1);
}

/** Verifies that no packet of media is tracked, while the signalling is. */
async function assertUntracked({ stage }: Media): Promise<void> {
  const entries = await stage.conntrack();
  // A masqueraded flow to port 3478 may have any source port.
  const signalling = entries.filter((entry) => entry.includes(' dport=3478 '));
  const others = entries.filter((entry) => !entry.includes(' dport=3478 '));
  assert.deepEqual(others, [], 'no conntrack entries for media');
  print(
    `Conntrack entries of both nodes: 0 for media, ${signalling.length} for port 3478, which is spread.`,
  );
}

function record(
  { totals }: Media,
  ordinal: number,
  calls: readonly CallCounts[],
  sentOf: (call: CallCounts) => number,
  lostOf: (call: CallCounts) => number,
): void {
  const total = totals[ordinal];
  assert.ok(total);
  assert.equal(sum(calls, lostOf), 0, `packets lost by calls of media-${ordinal}`);
  total.calls += calls.length;
  total.sent += sum(calls, sentOf);
  total.received += received(calls);
  total.lost += sum(calls, lostOf);
}

function printCalls({ stage, totals }: Media, counts: readonly CallCounts[]): void {
  table([
    ['pod', 'calls', 'sent', 'received', 'lost'],
    ...[...totals.keys()].map((ordinal) => {
      const its = counts.filter(({ port }) => stage.ownerOf(port) === ordinal);
      const total = {
        calls: its.length,
        sent: sum(its, ({ out, back }) => out.next + back.next),
        received: received(its),
        lost: sum(its, lostSoFar),
      };
      return [`media-${ordinal}`, ...cells(total)];
    }),
  ]);
}

function cells({ calls, sent, received: arrived, lost: missing }: Total): string[] {
  return [calls, sent, arrived, missing].map(grouped);
}

function received(calls: readonly CallCounts[]): number {
  return sum(calls, ({ out, back }) => out.received + back.received);
}

function sum(calls: readonly CallCounts[], of: (call: CallCounts) => number): number {
  return calls.reduce((total, call) => total + of(call), 0);
}
