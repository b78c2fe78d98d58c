/**
 * Scenarios that every proxy mode passes: the same Services and packets with the same results. A
 * scenario lists modes that cannot pass by design in `impossible`, with the reason.
 */
import assert from 'node:assert/strict';
import type { Family, Host, Lab, Outcome } from '../../lab/lab.ts';
import type { Agent } from '../agent.ts';
import {
  type EndpointFields,
  type Manifest,
  type ServiceFields,
  type SliceFields,
  serviceManifest,
  sliceManifest,
} from '../manifests.ts';

export interface Scenario {
  readonly title: string;
  /** Modes that cannot pass the scenario by design, with the reason. */
  readonly impossible?: Readonly<Partial<Record<'ipvs' | 'nftables', string>>>;
  run(world: World): Promise<void>;
}

/** A lab in one IP family, with an agent on its node. Pods serve every port. */
export class World {
  readonly family: Family;
  readonly lab: Lab;
  readonly agent: Agent;
  /** Factor for timeouts; above 1 in user-mode-linux. */
  readonly timeoutFactor: number;

  constructor(lab: Lab, agent: Agent, family: Family, timeoutFactor = 1) {
    this.lab = lab;
    this.agent = agent;
    this.family = family;
    this.timeoutFactor = timeoutFactor;
  }

  get node(): Host {
    return this.lab.node;
  }

  get client(): Host {
    return this.lab.client;
  }

  /** A pod on the node under test. */
  pod(index: number): Host {
    return at(this.lab.pods, index);
  }

  /** A pod on the other node. */
  remote(index: number): Host {
    return at(this.lab.remotePods, index);
  }

  /** Main address of a host in this family. */
  address(host: Host): string {
    return this.family === 4 ? host.ipv4 : host.ipv6;
  }

  clusterIP(number: number): string {
    return this.family === 4 ? `10.96.0.${number}` : `fd00:10:96::${number.toString(16)}`;
  }

  /**
   * A load balancer or external address; the client has a route for the address through the node.
   */
  vip(number: number): string {
    return this.family === 4 ? `203.0.113.${number}` : `2001:db8:113::${number.toString(16)}`;
  }

  /** One of two texts, by family. */
  pick(ipv4: string, ipv6: string): string {
    return this.family === 4 ? ipv4 : ipv6;
  }

  service(name: string, fields: ServiceFields): Manifest {
    return serviceManifest(name, fields);
  }

  slice(
    service: string,
    pods: readonly (Host | readonly [Host, EndpointFields])[],
    fields?: SliceFields,
  ): Manifest {
    return sliceManifest(service, this.family, pods, fields);
  }

  /**
   * Adds or removes a local route for a VIP on the node, as announcers of VIPs and load balancers
   * do. Its metric differs from that of an agent's own routes.
   */
  async routeToNode(action: 'add' | 'del', vip: string): Promise<void> {
    const route = ['route', action, 'local', vip, 'dev', 'lo', 'metric', '77'];
    await this.node.exec('ip', [this.pick('-4', '-6'), ...route]);
  }

  apply(objects: readonly Manifest[]): Promise<void> {
    return this.agent.apply(objects);
  }
}

function at(hosts: readonly Host[], index: number): Host {
  const host = hosts[index];
  if (host === undefined) throw new RangeError(`the lab has no pod ${index}`);
  return host;
}

/**
 * Asserts that a lab server answered.
 * @returns its reply.
 */
export function answered(outcome: Outcome) {
  if (outcome.outcome !== 'answered') assert.fail(`not answered: ${JSON.stringify(outcome)}`);
  return outcome.reply;
}

/** Asserts an ICMP port unreachable, which only a rule sends here: hosts send a reset. */
export function refused(outcome: Outcome): void {
  assert.deepEqual(outcome, { outcome: 'refused', by: 'icmp' });
}

export function droppedSilently(outcome: Outcome): void {
  assert.deepEqual(outcome, { outcome: 'timeout' });
}

/** Timeout for packets that must not arrive. */
export const SHORT = { timeoutMs: 400 };
