/**
 * `make demo`: shows an all-ports Service with real packets. All output is verified; the demo fails
 * if something is not as described. An argument or SEED in the environment selects the same random
 * ports again.
 */
import { randomInt } from 'node:crypto';
import { constants } from 'node:os';
import { watchForEnd } from './demo/end.ts';
import { createEnvironment, type DemoEnvironment } from './demo/environment.ts';
import { showRemoval } from './demo/removal.ts';
import { showRules } from './demo/rules.ts';
import { showStatus } from './demo/status.ts';
import {
  showName,
  showNetwork,
  showNoEndpoints,
  showPort22,
  showRandomPorts,
  showRanges,
  showService,
  showSpread,
} from './demo/steps.ts';
import { headline, print } from './demo/text.ts';
import { LabError } from './errors.ts';

const SEEDS = 2 ** 32;

async function play(stage: DemoEnvironment, seed: number): Promise<void> {
  showNetwork(stage);
  await stage.ready();
  showService(stage);
  await showRules(stage);
  const addresses = await showName(stage, seed);
  await showRandomPorts(stage, addresses, seed);
  await showSpread(stage, seed);
  await showPort22(stage);
  await showRemoval(stage, seed);
  await showNoEndpoints(stage);
  await showRanges(stage);
  await showStatus(stage);
}

function chosenSeed(): number {
  const text = process.argv[2] ?? process.env.SEED;
  if (text === undefined) return randomInt(1_000_000);
  const seed = Number(text);
  if (/^\d+$/.test(text) && seed < SEEDS) return seed;
  console.error(`The seed must be a whole number below ${SEEDS}, not ${text}.`);
  process.exit(2);
}

const seed = chosenSeed();
const end = watchForEnd();
const started = performance.now();
let stage: DemoEnvironment | undefined;
try {
  headline('Portwide: a Kubernetes Service on every port');
  print(
    'A Kubernetes Service lists its ports one by one. With Portwide instead of kube-proxy, a Service',
    'can have all ports, or ranges of ports. This demo shows both.',
  );
  stage = await createEnvironment({ pods: 3 });
  if (end.signal() !== undefined) await end.interrupted;
  await Promise.race([play(stage, seed), stage.ended, end.interrupted]);
  await stage.destroy();
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
    if (stage) console.error(`\nThe log of the agent:\n${stage.log()}`);
  }
  await stage?.destroy().catch((failure) => console.error('Cleaning up failed:', failure));
  if (signal === 'SIGINT') console.error('\nInterrupted; the network has been removed.');
  // Pending promises of the demo would keep the process alive.
  process.exit(signal === undefined ? 1 : 128 + constants.signals[signal]);
}
