/** Desired state of one family in the ipvs mode. */
import { isDeepStrictEqual } from 'node:util';
import { isLinkLocal } from '../api/addresses.ts';
import type { ObjectKey } from '../api/objects.ts';
import type { IpvsAllPortsMode } from '../config/mode-values.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { describeIptablesRule } from '../iptables/describe.ts';
import { Ruleset } from '../iptables/ruleset.ts';
import type { IpvsDestinationKey, IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import type { Log } from '../process/log.ts';
import type {
  BackendTraffic,
  KernelRule,
  ModeTraffic,
  RulePurpose,
} from '../proxier/kernel-rule.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import { type Route, vipsOf } from '../services/route.ts';
import { listedNodePortAddresses, type NodePortOptions } from '../traffic/options.ts';
import { allowsOwnVips, dependsOnNodeAddresses, trafficPlan } from '../traffic/plan.ts';
import {
  compileIpvsItems,
  healthCheckItems,
  type IpvsCompileOptions,
  markOwners,
} from './compile.ts';
import { DesiredItems } from './desired-items.ts';
import { DrainingVips } from './draining-vips.ts';
import type { EndpointState } from './graceful-termination.ts';
import { type IpvsItem, serviceText } from './items.ts';
import { type MarkAllocator, verdictMarks } from './marks.ts';
import { NodePortConflicts } from './node-port-conflicts.ts';
import { ipvsStaticRules, type RuleOptions } from './rules.ts';

/** How mode ipvs treats packets. */
export const IPVS_TRAFFIC: ModeTraffic = { forwardsWithIpvs: true, rejectsOtherPorts: 'vips' };

export interface IpvsPlanOptions extends RuleOptions, NodePortOptions {
  readonly scheduler: string;
  /** Whether IPVS or iptables rules serve all-ports Services (`--ipvs-all-ports`). */
  readonly allPorts: IpvsAllPortsMode;
  readonly onWarning: Log['warn'];
}

/** A Route with its items and the owners of its marks. */
export interface CompiledRoute {
  readonly route: Route;
  readonly items: readonly IpvsItem[];
  readonly owners: readonly string[];
}

/**
 * Desired IPVS services, ipset entries, bound VIPs and rules of one family, maintained Route by Route.
 * Does not access the kernel.
 */
export class IpvsPlan {
  readonly desired = new DesiredItems();
  readonly drainingVips = new DrainingVips(this.desired);
  readonly ruleset: Ruleset;
  readonly #options: IpvsPlanOptions;
  readonly #marks: MarkAllocator;
  readonly #routes = new Map<string, CompiledRoute>();
  /** Number of Routes by Service. */
  readonly #routeCounts = new Map<ObjectKey, number>();
  readonly #nodePorts = new NodePortConflicts();
  /**
   * Route by IPVS service key. The endpoints of the Route decide when draining destinations are
   * deleted.
   */
  readonly #routesByService = new Map<string, Route>();
  #changedServices = new Set<string>();
  /**
   * Ids of Routes that wait for a mark because the range is exhausted. Packets to all-ports VIPs of
   * these Routes are rejected.
   */
  readonly #waitingForMark = new Set<string>();
  #nodeAddresses: NodeAddresses = { addresses: [], primary: [] };
  #compileOptions: IpvsCompileOptions;

  constructor(options: IpvsPlanOptions, marks: MarkAllocator) {
    this.#options = options;
    this.#marks = marks;
    this.#compileOptions = this.#optionsFor(this.#nodeAddresses);
    this.ruleset = new Ruleset(this.#ruleOptions(), this.#staticRules());
  }

  /** Sets the node's addresses, and recompiles the Routes that depend on them. */
  setNodeAddresses(nodeAddresses: NodeAddresses): void {
    const [now, then] = [nodeAddresses.addresses, this.#nodeAddresses.addresses];
    const isGainedOrLost = (vip: string) => now.includes(vip) !== then.includes(vip);
    this.#nodeAddresses = nodeAddresses;
    // Release VIPs that are now node addresses, so that packets to them reach the node's listeners.
    for (const address of nodeAddresses.addresses) this.drainingVips.release(address);
    const before = this.#compileOptions.nodePortAddresses;
    this.#compileOptions = this.#optionsFor(nodeAddresses);
    this.ruleset.setOptions(this.#ruleOptions(), this.#staticRules());
    const nodePortAddressesChanged = !isDeepStrictEqual(
      before,
      this.#compileOptions.nodePortAddresses,
    );
    for (const { route } of [...this.#routes.values()]) {
      const isAffected =
        (nodePortAddressesChanged && route.nodePort > 0) ||
        dependsOnNodeAddresses(route) ||
        vipsOf(route).some(isGainedOrLost);
      if (isAffected) this.#replace(route.id, route);
    }
  }

  /**
   * Updates the plan, without writing to the kernel.
   * @param upserts complete new versions of Routes.
   * @param removals ids of removed Routes.
   */
  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const [changed, gone] = [[...upserts], [...removals]];
    const records = [...gone, ...changed.map(({ id }) => id)].flatMap(
      (id) => this.#routes.get(id) ?? [],
    );
    const served = new Set(changed.map(({ serviceKey }) => serviceKey));
    const bound = new Set(changed.flatMap(vipsOf));
    for (const { route, items } of records) {
      const { serviceKey, match } = route;
      // A Service with listed ports lets go of a VIP at once, as in kube-proxy: another host may have it by now.
      const keeps = served.has(serviceKey) && match.kind !== 'port';
      if (!keeps && !this.drainingVips.isRefused(serviceKey)) continue;
      const lost = items.flatMap((item) =>
        item.kind === 'address' && !bound.has(item.address) ? [item.address] : [],
      );
      this.drainingVips.retain(serviceKey, lost);
    }
    for (const id of gone) {
      this.#replace(id, undefined);
      this.ruleset.update([], [id]);
    }
    for (const route of changed) {
      this.#replace(route.id, route);
      if (this.#usesIptables(route)) this.ruleset.update([route], []);
    }
    for (const { route } of records) this.#endIfDeleted(route.serviceKey);
  }

  /** A Service that has lost all Routes without being refused is deleted, or no longer served by this agent. */
  #endIfDeleted(service: ObjectKey): void {
    const { drainingVips } = this;
    if (drainingVips.isRefused(service) || !drainingVips.keepsFor(service)) return;
    if (!this.#routeCounts.has(service)) drainingVips.deleteService(service);
  }

  /**
   * Keys of IPVS services whose Routes changed since the last call. Their draining destinations may
   * now be deleted.
   */
  takeChangedServices(): ReadonlySet<string> {
    const changed = this.#changedServices;
    this.#changedServices = new Set();
    return changed;
  }

  /** Number of Services that wait for a free fwmark. */
  get waitingForMark(): number {
    const services = [...this.#waitingForMark].map((id) => this.#routes.get(id)?.route.serviceKey);
    return new Set(services).size;
  }

  /** Whether the node has this address on another device than the dummy device. */
  isNodeAddress(address: string): boolean {
    return this.#nodeAddresses.addresses.includes(address);
  }

  /**
   * Name of the Service port (`ns/name` or `ns/name:port`) behind an IPVS service.
   * @param service key from `serviceText`.
   */
  servicePortName(service: string): string | undefined {
    return this.#routesByService.get(service)?.name;
  }

  /** The Service behind an IPVS service. @param service key as of `serviceText`. */
  serviceKey(service: string): ObjectKey | undefined {
    return this.#routesByService.get(service)?.serviceKey;
  }

  /** Routes with their items. */
  routes(): Iterable<CompiledRoute> {
    return this.#routes.values();
  }

  /** State of the endpoint behind a destination. */
  endpointState(service: IpvsServiceKey, { address, port }: IpvsDestinationKey): EndpointState {
    const route = this.#routesByService.get(serviceText(service));
    if (route === undefined) return 'notServing';
    const isThis = (endpoint: Endpoint) =>
      endpoint.address === address && (endpoint.port ?? 0) === port;
    if (route.servingEndpoints.some(isThis)) return 'serving';
    return route.notServingEndpoints.some(isThis) ? 'notServing' : 'gone';
  }

  /** See `Backend.traffic`. */
  traffic(): BackendTraffic {
    return {
      ...IPVS_TRAFFIC,
      translatesByRules: (route) => this.#usesIptables(route),
      options: { ...this.#options, resetsTcp: false },
      isNodePortAddress: (address) => this.#compileOptions.nodePortAddresses.includes(address),
      serviceCidrs: [],
    };
  }

  /** See `Backend.describeRule`. */
  describeRule(rule: KernelRule): RulePurpose | undefined {
    return describeIptablesRule(rule, this.ruleset);
  }

  #usesIptables(route: Route): boolean {
    return this.#options.allPorts === 'iptables' && route.match.kind !== 'port';
  }

  #staticRules() {
    return ipvsStaticRules(this.#options, this.#options.allPorts === 'iptables');
  }

  #ruleOptions() {
    return { ...this.#options, nodeAddresses: this.#nodeAddresses.addresses, resetsTcp: false };
  }

  #optionsFor(nodeAddresses: NodeAddresses): IpvsCompileOptions {
    const { family, scheduler, markRange } = this.#options;
    const addresses = listedNodePortAddresses(this.#options, nodeAddresses);
    return {
      family,
      scheduler,
      nodeAddresses: nodeAddresses.addresses,
      // Exclude link-local addresses, as kube-proxy does. Loopback addresses are already excluded:
      // IPVS does not send packets from a loopback address off the host
      // (crosses_local_route_boundary).
      nodePortAddresses: addresses.filter((each) => !isLinkLocal(each)),
      verdicts: verdictMarks(markRange),
      isVipPort: (ip, protocol, port) => this.#nodePorts.isVipPort(ip, protocol, port),
      markOf: (owner) => this.#marks.allocate(owner),
    };
  }

  #replace(id: string, route: Route | undefined): void {
    const before = this.#routes.get(id);
    const conflicting = this.#nodePorts.replace(before?.route, route);
    const after = route === undefined ? undefined : this.#compile(route);
    for (const item of after?.items ?? []) this.desired.addReference(item);
    for (const item of before?.items ?? []) this.desired.removeReference(item);
    const released = (before?.owners ?? []).filter((owner) => !after?.owners.includes(owner));
    for (const owner of released) this.#marks.release(owner);
    for (const item of before?.items ?? []) this.#indexService(item, undefined);
    for (const item of after?.items ?? []) this.#indexService(item, route);
    this.#countRoute(before?.route, -1);
    this.#countRoute(route, 1);
    if (after === undefined) {
      this.#routes.delete(id);
      this.#waitingForMark.delete(id);
    } else this.#routes.set(id, after);
    const affected = new Set([
      ...conflicting,
      ...(released.length > 0 ? this.#waitingForMark : []),
    ]);
    affected.delete(id);
    for (const other of affected) this.#replace(other, this.#routes.get(other)?.route);
  }

  #countRoute(route: Route | undefined, change: 1 | -1): void {
    if (route === undefined) return;
    const count = (this.#routeCounts.get(route.serviceKey) ?? 0) + change;
    if (count > 0) this.#routeCounts.set(route.serviceKey, count);
    else this.#routeCounts.delete(route.serviceKey);
  }

  #compile(route: Route): CompiledRoute {
    const plan = trafficPlan(route, allowsOwnVips(route, this.#nodeAddresses.addresses));
    if (this.#usesIptables(route)) return { route, items: healthCheckItems(plan), owners: [] };
    const items = compileIpvsItems(plan, this.#compileOptions);
    const owners = markOwners(plan);
    if (owners.every((owner) => this.#marks.allocate(owner) !== undefined)) {
      this.#waitingForMark.delete(route.id);
      return { route, items, owners };
    }
    // The plan needs all of its marks. Release the marks that were allocated, so that another
    // Service may use them.
    for (const owner of owners) this.#marks.release(owner);
    if (!this.#waitingForMark.has(route.id)) {
      this.#waitingForMark.add(route.id);
      const effect =
        route.match.kind === 'port'
          ? 'pods and the node reach only endpoints on this node'
          : 'connections to the Service are rejected';
      this.#options.onWarning(
        { service: route.name, setting: '--ipvs-fwmark-range', effect, hint: 'use a larger range' },
        'no packet mark left for a Service',
      );
    }
    return { route, items, owners: [] };
  }

  #indexService(item: IpvsItem, route: Route | undefined): void {
    if (item.kind !== 'service') return;
    const key = serviceText(item.service);
    this.#changedServices.add(key);
    if (route === undefined) this.#routesByService.delete(key);
    else this.#routesByService.set(key, route);
  }
}
