/**
 * `make demo-media`: shows ports owned by pods, with TURN relays, calls with media, a rollout and a killed agent. All
 * output is verified; the demo fails if something is not as described. An argument is the number of calls.
 */
import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { MediaStage } from '../e2e/media/stage.ts';
import {
  introduceRollout,
  showCalls,
  showKill,
  showStage,
  showSuccessor,
  showTotals,
  showWire,
} from '../e2e/media/steps.ts';
import { watchForEnd } from './demo/end.ts';
import { headline, print } from './demo/text.ts';
import { startWatchdog } from './demo/watchdog.ts';
import { LabError } from './errors.ts';

const DEFAULT_CALLS = 200;
const MOST_CALLS = 300;

async function play(stage: MediaStage, calls: number): Promise<void> {
  const media = await showStage(stage);
  const capture = await stage.capture();
  await showCalls(media, calls);
  await showKill(media);
  introduceRollout();
  const { pods, remotePods } = stage.lab;
  // As a StatefulSet does it: the highest ordinal first. Successors run on the other node.
  for (const [ordinal, next] of [
    [2, remotePods[1]],
    [1, pods[2]],
    [0, remotePods[2]],
  ] as const) {
    const pod = stage.pods[ordinal];
    assert.ok(pod && next);
    await showSuccessor(media, pod, next);
  }
  const total = await showTotals(media);
  await showWire(media, await capture.finish(total));
}

function chosenCalls(): number {
  const text = process.argv[2] ?? String(DEFAULT_CALLS);
  const calls = Number(text);
  if (/^\d+$/.test(text) && calls >= 10 && calls <= MOST_CALLS) return calls;
  console.error(`The number of calls must be 10 to ${MOST_CALLS}, not ${text}.`);
  process.exit(2);
}

const calls = chosenCalls();
const end = watchForEnd();
const started = performance.now();
let stage: MediaStage | undefined;
let endWatchdog: (() => Promise<void>) | undefined;
try {
  headline('Portwide: ports owned by pods, with media servers behind one VIP');
  stage = await MediaStage.create();
  endWatchdog = startWatchdog(
    stage.directory,
    stage.lab.hosts.map(({ namespace }) => namespace),
  );
  if (end.signal() !== undefined) await end.interrupted;
  await Promise.race([play(stage, calls), end.interrupted]);
  await stage.destroy();
  await endWatchdog();
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  print('');
  headline(
    `All of the above was verified with real packets, in ${seconds} s. The network has been removed.`,
  );
} catch (error) {
  const signal = end.signal();
  if (signal === undefined) {
    if (error instanceof LabError && error.code === 'COMMAND_FAILED') {
      console.error(`\nThe demo cannot build its network: ${error.message}`);
      console.error('"make setup" reports what this machine lacks.');
    } else console.error('\nThe demo failed:', error);
    if (stage) console.error(`\nLogs:\n${await stage.logs().catch(String)}`);
  }
  await stage?.destroy().catch((failure) => console.error('Cleaning up failed:', failure));
  await endWatchdog?.();
  if (signal === 'SIGINT') console.error('\nInterrupted; the network has been removed.');
  // Pending promises of the demo would keep the process alive.
  process.exit(signal === undefined ? 1 : 128 + constants.signals[signal]);
}
