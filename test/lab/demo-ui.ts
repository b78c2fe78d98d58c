/**
 * `make demo-ui`: leaves the network of the demo running with traffic, and prints the address of the status page of its
 * node. Ends with Ctrl-C.
 */
import { join } from 'node:path';
import { watchForEnd } from './demo/end.ts';
import { createEnvironment, type DemoEnvironment } from './demo/environment.ts';
import { headline, print, table } from './demo/text.ts';
import { startTraffic, type Traffic } from './demo/traffic.ts';
import { startWatchdog } from './demo/watchdog.ts';
import { LabError, messageOf } from './errors.ts';
import { type Forwarder, forwardPort } from './forward.ts';

/** Default of --status-bind-address, on the node and on the machine. */
const STATUS_PORT = 10_270;

const firstLine = (text: string) => text.split('\n')[0] ?? '';

const end = watchForEnd();
const OPTIONS = {
  pods: 5,
  manifests: [join(import.meta.dirname, 'demo/services.yaml')],
  // With the log group, Flows shows denied packets too.
  flags: ['--network-policy', '--policy-log-group=1'],
  onRestart: (reason: string) => print(`${firstLine(reason)}; starting it again …`),
  isInterrupted: () => end.signal() !== undefined,
};

function introduce({ directory, lab }: DemoEnvironment, { localPort }: Forwarder): void {
  const socket = join(directory, 'portwide.sock');
  headline('Portwide: a node with traffic, to look at in a browser');
  table([
    ['Status page:', `http://127.0.0.1:${localPort}/`],
    ['From elsewhere:', `ssh -L ${localPort}:127.0.0.1:${localPort} MACHINE`],
    [
      'Commands:',
      `ip netns exec ${lab.node.namespace} ./portwide get services --status-socket=${socket}`,
    ],
    ['Manifests:', `${directory}; the agent follows changes`],
    ['A shell on the node:', `ip netns exec ${lab.node.namespace} bash`],
  ]);
  print('');
  headline('Ctrl-C ends and removes everything.');
}

let stage: DemoEnvironment | undefined;
let endWatchdog: (() => Promise<void>) | undefined;
let forwarder: Forwarder | undefined;
let traffic: Traffic | undefined;
let status = 0;
try {
  print('Building a network of network namespaces …');
  stage = await createEnvironment(OPTIONS);
  const { lab } = stage;
  endWatchdog = startWatchdog(
    stage.directory,
    lab.hosts.map(({ namespace }) => namespace),
  );
  if (end.signal() !== undefined) await end.interrupted;
  await Promise.race([stage.ready(), stage.ended, end.interrupted]);
  // Count packets and bytes too. This sysctl exists once the rules use conntrack.
  await lab.node.exec('sysctl', ['-qw', 'net.netfilter.nf_conntrack_acct=1']);
  forwarder = await forwardPort({
    namespace: lab.node.namespace,
    port: STATUS_PORT,
    localPort: STATUS_PORT,
  });
  traffic = startTraffic(stage, (error) =>
    print(`Traffic of the demo fails and goes on: ${firstLine(messageOf(error))}`),
  );
  introduce(stage, forwarder);
  await Promise.race([stage.ended, end.interrupted]);
} catch (error) {
  if (end.signal() === undefined) {
    status = 1;
    if (error instanceof LabError && error.code === 'COMMAND_FAILED') {
      console.error(`\nThe demo cannot build its network: ${error.message}`);
      console.error('"make setup" reports what this machine lacks.');
    } else console.error('\nThe demo failed:', error);
    if (stage) console.error(`\nThe log of the agent:\n${stage.log()}`);
  }
}
try {
  await forwarder?.close();
  const isQuiet = traffic?.stop();
  await stage?.destroy();
  await isQuiet;
  await endWatchdog?.();
  const errors = traffic?.errors() ?? 0;
  if (errors > 0) print('', `${errors} steps of the traffic failed.`);
  print('', 'The network has been removed.');
} catch (error) {
  console.error('Cleaning up failed:', error);
  status = 1;
}
// Pending promises would keep the process alive.
process.exit(status);
