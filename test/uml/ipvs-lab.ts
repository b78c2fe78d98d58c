/** A lab with an agent in IPVS mode, its Services, and functions that read the node's kernel. */
import { setTimeout } from 'node:timers/promises';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import {
  ALL_PORTS,
  type EndpointFields,
  type Manifest,
  type ServiceFields,
  serviceManifest,
  sliceManifest,
} from '../e2e/manifests.ts';
import {
  createLab,
  type HeldConnection,
  type Host,
  type Lab,
  withoutCounters,
} from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

export const IPVS_FLAGS = [...AGENT_FLAGS, '--proxy-mode=ipvs', '--iptables-variant=legacy'];
export const FAMILIES = [4, 6] as const;
/** Milliseconds: several retransmissions of a SYN on a slow machine. */
const PATIENCE_MS = 20_000;
/** Milliseconds between probes. */
const PAUSE_MS = 20;

type Pods = readonly (Host | readonly [Host, EndpointFields])[];
type Fields = Partial<Omit<ServiceFields, 'spec'>> & { readonly spec?: Record<string, unknown> };

/** Continuous probes. */
export interface Prober {
  /** Number of finished probes. */
  readonly count: number;
  /**
   * Stops the probes.
   * @returns the unanswered probes.
   */
  stop(): Promise<string[]>;
}

export class IpvsLab {
  readonly lab: Lab;
  readonly agent: Agent;
  #lastPort = 10_000;

  private constructor(lab: Lab) {
    this.lab = lab;
    this.agent = new Agent(lab, { syncs: 2 });
  }

  /** A lab whose agent has not been started. */
  static async create(): Promise<IpvsLab> {
    const lab = await createLab({ pods: 3, remotePods: 1, podRules: 'legacy' });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    return new IpvsLab(lab);
  }

  async destroy(): Promise<void> {
    await this.agent.destroy();
    await this.lab.destroy();
  }

  /** Pods of the node, by index. */
  pods(...indices: readonly number[]): Host[] {
    return indices.map((index) => {
      const pod = this.lab.pods[index];
      if (pod === undefined) throw new RangeError(`the lab has no pod ${index}`);
      return pod;
    });
  }

  /** Opens connections from the client and keeps them. */
  hold(...targets: readonly (readonly [vip: string, port: number])[]): Promise<HeldConnection[]> {
    return Promise.all(
      targets.map(([vip, port]) =>
        this.lab.client.hold(vip, port, { localPort: this.#unusedPort() }),
      ),
    );
  }

  /**
   * Lets the client connect to each target repeatedly and in parallel. A failed connection is
   * reported with the IPVS and conntrack entries of that VIP.
   */
  keepProbing(...targets: readonly (() => readonly [vip: string, port: number])[]): Prober {
    let isRunning = true;
    let count = 0;
    const failures: string[] = [];
    const clients = targets.map(async (next) => {
      while (isRunning) {
        const [vip, port] = next();
        const outcome = await this.lab.client.tcp(vip, port, {
          timeoutMs: PATIENCE_MS,
          localPort: this.#unusedPort(),
        });
        count += 1;
        // Otherwise the probes would take the only CPU from the agent that they test.
        await setTimeout(PAUSE_MS);
        if (outcome.outcome === 'answered') continue;
        const connections = await this.#shown(
          `ipvsadm -Ln; ipvsadm -Lnc | grep -F ':${port} '; conntrack -L -p tcp --dport ${port}`,
        );
        failures.push(`${vip} port ${port}: ${JSON.stringify(outcome)}\n${connections}`);
      }
    });
    return {
      get count() {
        return count;
      },
      stop: async () => {
        isRunning = false;
        await Promise.all(clients);
        return failures;
      },
    };
  }

  /** Runs `portwide cleanup` on the node. */
  async cleanup(): Promise<void> {
    await this.lab.node.exec(PORTWIDE, ['cleanup'], { timeoutMs: 60_000 });
  }

  /** Output of `ipvsadm -Sn`, sorted. */
  async services(): Promise<string[]> {
    return sorted(await this.#shown(SHOW.services));
  }

  /** Owners of packet marks in IPv4 and IPv6, sorted. */
  async marks(): Promise<string[]> {
    const lines = [];
    for (const set of ['KUBE-MARKS', 'KUBE-6-MARKS']) {
      lines.push((await this.lab.node.exec('ipset', ['save', set])).stdout);
    }
    return sorted(lines.join('\n')).filter((line) => line.startsWith('add '));
  }

  /** The mark of an IPv4 owner. */
  async markOf(owner: string): Promise<number> {
    const marks = await this.marks();
    const entries = marks.map((line) => /^add KUBE-MARKS [^,]+,(\S+) comment "(.*)"$/.exec(line));
    const mark = entries.find((entry) => entry?.[2] === owner)?.[1];
    if (mark === undefined) throw new Error(`no mark of ${owner} in\n${marks.join('\n')}`);
    return Number(mark);
  }

  /** Addresses of kube-ipvs0 that the kernel did not add itself, sorted. */
  async addresses(): Promise<string[]> {
    return addressesIn(await this.#shown(SHOW.addresses));
  }

  /**
   * All state of the node's kernel that an agent writes, except draining destinations, which remain
   * while connections do. Read by one process, because starting processes is slow inside.
   */
  async snapshot(): Promise<string[]> {
    const script = Object.values(SHOW).join(` && echo ${BREAK} && `);
    const shown = await this.#shown(script);
    const [services = '', sets = '', addresses = '', ...rules] = shown.split(BREAK);
    return [
      ...sorted(services).filter((line) => !line.endsWith(' -w 0')),
      // Fields that depend on the history of a set's size.
      ...sorted(sets.replaceAll(/ (hashsize|bucketsize|initval) \S+/g, '')),
      ...addressesIn(addresses),
      ...rules.flatMap((text) => withoutCounters(text).split('\n')),
    ];
  }

  /**
   * A source port that the client has not used, outside the kernel's own range. IPVS identifies a
   * reply by pod and client port only. A port used with two VIPs of a pod loses handshakes, until
   * the first connection's entry expires after two minutes.
   */
  #unusedPort(): number {
    this.#lastPort += 1;
    return this.#lastPort;
  }

  async #shown(script: string): Promise<string> {
    return (await this.lab.node.exec('sh', ['-c', script])).stdout;
  }
}

const SHOW = {
  services: 'ipvsadm -Sn',
  sets: 'ipset save',
  addresses: 'ip -o addr show dev kube-ipvs0',
  rules: 'iptables-legacy-save',
  rules6: 'ip6tables-legacy-save',
};
const BREAK = '=====';

function addressesIn(shown: string): string[] {
  return (shown.match(/(?<=inet6? )\S+/g) ?? [])
    .filter((address) => !address.startsWith('fe80:'))
    .sort();
}

function sorted(text: string): string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .sort();
}

/** Cluster IPs of both families. */
export function vips(number: number): [ipv4: string, ipv6: string] {
  return [`10.96.0.${number}`, `fd00:10:96::${number.toString(16)}`];
}

/** A Service in both families, with slices of both. */
export function service(
  name: string,
  number: number,
  pods: Pods,
  { spec, ...fields }: Fields = {},
  ports: readonly Record<string, unknown>[] = [],
): Manifest[] {
  return [
    serviceManifest(name, { ...fields, spec: { clusterIPs: vips(number), ...spec } }),
    ...FAMILIES.map((family) => sliceManifest(name, family, pods, { ports })),
  ];
}

/** An all-ports Service. */
export function allPorts(name: string, number: number, pods: Pods, spec = {}): Manifest[] {
  return service(name, number, pods, { annotations: ALL_PORTS, spec });
}

/** A Service on port ranges. */
export function ranges(name: string, number: number, pods: Pods, ports: string): Manifest[] {
  return service(name, number, pods, { annotations: { 'portwide.dev/ports': ports } });
}

/** A Service on TCP port 80 with target port 8080. */
export function listed(name: string, number: number, pods: Pods, spec = {}): Manifest[] {
  const ports = [{ name: '', port: 8080 }];
  return service(name, number, pods, { spec: { ports: [{ port: 80 }], ...spec } }, ports);
}
