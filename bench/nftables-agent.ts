/** The whole agent, `portwide run`, on a node whose API server has the cluster of this benchmark. */
import { readdirSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { RemoteDouble } from '../test/api-server/remote.ts';
import { ALL_PORTS, type Manifest, PLACEHOLDER, serviceManifest } from '../test/e2e/manifests.ts';
import { runIn } from '../test/lab/processes.ts';
import {
  endpointAddresses,
  NODE,
  nodeOf,
  POD_CIDR,
  SERVICE_PORT,
  serviceName,
  TARGET_PORT,
  vip,
} from './cluster.ts';
import type { AgentReport } from './nftables-jobs.ts';

const PORTWIDE = fileURLToPath(new URL('../portwide', import.meta.url));
/** Objects in a call to the double. */
const CALL = 500;
/** Milliseconds between two looks at the memory. */
const LOOK = 20;
/** Milliseconds that the agent rests. */
const REST = 5000;
const FLAGS = [
  `--hostname-override=${NODE}`,
  `--cluster-cidr=${POD_CIDR}`,
  '--proxy-mode=nftables',
];

/** Starts the agent in a namespace, for `services` ordinary Services and one on every port. */
export async function runAgent(namespace: string, services: number): Promise<AgentReport> {
  const node = runIn('node', namespace);
  try {
    const double = await RemoteDouble.start(node.spawn);
    await fill(double, services);
    const started = performance.now();
    const {
      pid = 0,
      stdout,
      stderr,
    } = node.spawn(PORTWIDE, ['run', `--master=${double.url}`, ...FLAGS]);
    if (stdout === null) throw new Error('the agent has no output');
    stderr?.pipe(process.stderr);
    const lines = createInterface({ input: stdout });
    const watch = watchMemory(pid);
    const unserved = new Set(['IPv4', 'IPv6']);
    for await (const line of lines) {
      const { msg, family = '' } = JSON.parse(line) as { msg: string; family?: string };
      if (msg === 'serving') unserved.delete(family);
      if (unserved.size === 0) break;
    }
    if (unserved.size > 0) throw new Error('the agent has ended');
    const start = (performance.now() - started) / 1000;
    await sleep(REST);
    const { peak, last } = watch.stop();
    return { start, peak, resting: last };
  } finally {
    await node.stop();
  }
}

/** Puts everything into the API server, in calls of some hundred objects. */
async function fill(double: RemoteDouble, services: number): Promise<void> {
  const objects = Array.from({ length: services + 1 }, (_, index) =>
    manifestsOf(index, index === services),
  ).flat();
  for (let at = 0; at < objects.length; at += CALL) {
    await double.call('put', ...objects.slice(at, at + CALL));
  }
  await double.call('put', {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: NODE },
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
  });
}

function manifestsOf(index: number, isAllPorts: boolean): Manifest[] {
  const name = serviceName(index);
  const service = serviceManifest(name, {
    ...(isAllPorts ? { annotations: ALL_PORTS } : {}),
    spec: {
      clusterIPs: [vip(index)],
      ports: isAllPorts
        ? PLACEHOLDER
        : [{ port: SERVICE_PORT, protocol: 'TCP', targetPort: TARGET_PORT }],
    },
  });
  const slice = {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      name: `${name}-1`,
      namespace: 'default',
      labels: { 'kubernetes.io/service-name': name },
    },
    addressType: 'IPv4',
    ports: [{ name: '', protocol: 'TCP', port: TARGET_PORT }],
    endpoints: endpointAddresses(index).map((address, number) => ({
      addresses: [address],
      nodeName: nodeOf(index, number),
      conditions: { ready: true, serving: true, terminating: false },
      targetRef: { kind: 'Pod', namespace: 'default', name: `${name}-${number}` },
    })),
  };
  return [service, slice];
}

/** Looks at the memory of a process and its children until it is stopped; MiB. */
function watchMemory(pid: number): { stop(): { readonly peak: number; readonly last: number } } {
  let peak = 0;
  let last = 0;
  const look = () => {
    last = familyOf(pid).reduce((sum, each) => sum + memoryOf(each), 0);
    peak = Math.max(peak, last);
  };
  const timer = setInterval(look, LOOK);
  return {
    stop: () => {
      clearInterval(timer);
      look();
      return { peak, last };
    },
  };
}

/** A process and what it started. */
function familyOf(pid: number): number[] {
  return [pid, ...childrenOf(pid).flatMap(familyOf)];
}

function childrenOf(pid: number): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`).flatMap((task) =>
      readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8')
        .split(' ')
        .filter(Boolean)
        .map(Number),
    );
  } catch {
    // It has ended meanwhile.
    return [];
  }
}

/** Resident, in MiB. */
function memoryOf(pid: number): number {
  try {
    const [, kilobytes = '0'] =
      /^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
    return Number(kilobytes) / 1024;
  } catch {
    return 0;
  }
}
