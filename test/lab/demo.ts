/**
 * `make demo`: an all-ports Service at work on real packets, told in plain words. Whatever is
 * printed was seen; the demo ends with an error when something is not. An argument or SEED in the
 * environment chooses the same random ports again.
 */
import { randomInt } from 'node:crypto';
import { constants } from 'node:os';
import { createEnvironment, type DemoEnvironment } from './demo/environment.ts';
import { showRemoval } from './demo/removal.ts';
import { showRules } from './demo/rules.ts';
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
}

function chosenSeed(): number {
  const text = process.argv[2] ?? process.env.SEED;
  if (text === undefined) return randomInt(1_000_000);
  const seed = Number(text);
  if (/^\d+$/.test(text) && seed < SEEDS) return seed;
  console.error(`The seed must be a whole number below ${SEEDS}, not ${text}.`);
  process.exit(2);
}

/** What ends the demo early: a signal, or a reader that went away (`| head`). */
function watchForEnd() {
  const end = Promise.withResolvers<never>();
  end.promise.catch(() => undefined);
  let signal: NodeJS.Signals | undefined;
  const stop = (by: NodeJS.Signals) => {
    signal ??= by;
    end.reject(new Error(by));
  };
  // Not once(): the lab looks whether somebody listens, and ends the process when nobody does.
  for (const each of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(each, stop);
  process.stdout.on('error', () => stop('SIGPIPE'));
  return { early: end.promise, signal: () => signal };
}

const seed = chosenSeed();
const end = watchForEnd();
const begun = performance.now();
let stage: DemoEnvironment | undefined;
try {
  headline('Portwide: a Kubernetes Service on every port');
  print(
    'A Kubernetes Service lists its ports one by one. With Portwide in the place of kube-proxy, a',
    'Service can have every port, or ranges of ports. Here it is at work.',
  );
  stage = await createEnvironment();
  if (end.signal() !== undefined) await end.early;
  await Promise.race([play(stage, seed), stage.ended, end.early]);
  await stage.destroy();
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  print('');
  headline(
    `Everything above was seen on real packets, in ${seconds} s; the network is gone again.`,
  );
} catch (error) {
  const signal = end.signal();
  if (signal === undefined) {
    if (error instanceof LabError && error.code === 'COMMAND_FAILED') {
      console.error(`\nThe demo cannot build its network: ${error.message}`);
      console.error('"make setup" says what this machine lacks.');
    } else console.error('\nThe demo failed:', error);
    if (stage) console.error(`\nThe log of the agent:\n${stage.log()}`);
  }
  await stage?.destroy().catch((failure) => console.error('Cleaning up failed:', failure));
  if (signal === 'SIGINT') console.error('\nInterrupted; the network is gone again.');
  // What still waits in the play would keep the process.
  process.exit(signal === undefined ? 1 : 128 + constants.signals[signal]);
}
