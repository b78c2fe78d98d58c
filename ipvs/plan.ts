/** What one family should have in mode ipvs, Route by Route. */
import { isDeepStrictEqual } from 'node:util';
import { isLinkLocal } from '../api/addresses.ts';
import type { IpvsAllPortsMode } from '../config/mode-values.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { Ruleset } from '../iptables/ruleset.ts';
import type { IpvsDestinationKey, IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
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
import { type Item, serviceText } from './items.ts';
import { type MarkAllocator, verdictMarks } from './marks.ts';
import { NodePortConflicts } from './node-port-conflicts.ts';
import { ipvsStaticRules, type RuleOptions } from './rules.ts';

export interface IpvsPlanOptions extends RuleOptions, NodePortOptions {
  readonly scheduler: string;
  /** Who serves all-ports Services (`--ipvs-all-ports`). */
  readonly allPorts: IpvsAllPortsMode;
  readonly onWarning: (message: string) => void;
}

interface CompiledRoute {
  readonly route: Route;
  readonly items: readonly Item[];
  readonly owners: readonly string[];
}

/**
 * What one family should have in IPVS, ipsets and rules, kept up to date Route by Route. Pure but
 * for its memory: it touches no kernel.
 */
export class IpvsPlan {
  readonly desired = new DesiredItems();
  readonly drainingVips = new DrainingVips(this.desired);
  readonly ruleset: Ruleset;
  readonly #options: IpvsPlanOptions;
  readonly #marks: MarkAllocator;
  readonly #routes = new Map<string, CompiledRoute>();
  readonly #nodePorts = new NodePortConflicts();
  /** By service: whose endpoints are alive decides on what drains. */
  readonly #routesByService = new Map<string, Route>();
  #changedServices = new Set<string>();
  /** Ids of Routes for which no mark was left; they are rejected until there is one. */
  readonly #waitingForMark = new Set<string>();
  #facts: NodeAddresses = { addresses: [], primary: [] };
  #compileOptions: IpvsCompileOptions;

  constructor(options: IpvsPlanOptions, marks: MarkAllocator) {
    this.#options = options;
    this.#marks = marks;
    this.#compileOptions = this.#optionsFor(this.#facts);
    this.ruleset = new Ruleset(this.#ruleOptions(), this.#staticRules());
  }

  /** New facts about the node: compiles anew what depends on them. */
  setNodeAddresses(facts: NodeAddresses): void {
    const [now, then] = [facts.addresses, this.#facts.addresses];
    const moved = (vip: string) => now.includes(vip) !== then.includes(vip);
    this.#facts = facts;
    // What is the node's own now must reach its listeners.
    for (const address of facts.addresses) this.drainingVips.release(address);
    const before = this.#compileOptions.nodePortAddresses;
    this.#compileOptions = this.#optionsFor(facts);
    this.ruleset.setOptions(this.#ruleOptions(), this.#staticRules());
    const portsMoved = !isDeepStrictEqual(before, this.#compileOptions.nodePortAddresses);
    for (const { route } of [...this.#routes.values()]) {
      const isConcerned =
        (portsMoved && route.nodePort > 0) ||
        dependsOnNodeAddresses(route) ||
        vipsOf(route).some(moved);
      if (isConcerned) this.#replace(route.id, route);
    }
  }

  /** Hands over changed Routes whole, and the ids of Routes that went. */
  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    for (const id of removals) {
      const record = this.#routes.get(id);
      if (record !== undefined) this.drainingVips.retain(record.route.serviceKey, record.items);
      this.#replace(id, undefined);
      this.ruleset.update([], [id]);
    }
    for (const route of upserts) {
      this.#replace(route.id, route);
      if (this.#usesIptables(route)) this.ruleset.update([route], []);
    }
  }

  /** Services of Routes that changed since the last call: what drains there may be over. */
  takeChangedServices(): ReadonlySet<string> {
    const touched = this.#changedServices;
    this.#changedServices = new Set();
    return touched;
  }

  /** How many Services wait for a mark. */
  get waitingForMark(): number {
    const services = [...this.#waitingForMark].map((id) => this.#routes.get(id)?.route.serviceKey);
    return new Set(services).size;
  }

  /** Whether the node has this address other than on the agent's dummy device. */
  isNodeAddress(address: string): boolean {
    return this.#facts.addresses.includes(address);
  }

  /** Whose an IPVS service is (`ns/name` or `ns/name:port`), by its text. */
  nameOf(service: string): string | undefined {
    return this.#routesByService.get(service)?.name;
  }

  /** What became of the endpoint that a destination stands for. */
  endpointState(service: IpvsServiceKey, { address, port }: IpvsDestinationKey): EndpointState {
    const route = this.#routesByService.get(serviceText(service));
    if (route === undefined) return 'unready';
    const isThis = (endpoint: Endpoint) =>
      endpoint.address === address && (endpoint.port ?? 0) === port;
    if (route.servingEndpoints.some(isThis)) return 'alive';
    return route.notServingEndpoints.some(isThis) ? 'unready' : 'gone';
  }

  #usesIptables(route: Route): boolean {
    return this.#options.allPorts === 'iptables' && route.match.kind !== 'port';
  }

  #staticRules() {
    return ipvsStaticRules(this.#options, this.#options.allPorts === 'iptables');
  }

  #ruleOptions() {
    return { ...this.#options, nodeAddresses: this.#facts.addresses, resetsTcp: false };
  }

  #optionsFor(facts: NodeAddresses): IpvsCompileOptions {
    const { family, scheduler, markRange } = this.#options;
    const addresses = listedNodePortAddresses(this.#options, facts);
    return {
      family,
      scheduler,
      nodeAddresses: facts.addresses,
      // IPVS lets no packet from a loopback address leave the host (crosses_local_route_boundary).
      nodePortAddresses: addresses.filter((each) => !isLinkLocal(each)),
      verdicts: verdictMarks(markRange),
      isVipPort: (ip, protocol, port) => this.#nodePorts.isVipPort(ip, protocol, port),
      markOf: (owner) => this.#marks.allocate(owner),
    };
  }

  #replace(id: string, route: Route | undefined): void {
    const before = this.#routes.get(id);
    const yielding = this.#nodePorts.replace(before?.route, route);
    const after = route === undefined ? undefined : this.#compile(route);
    for (const item of after?.items ?? []) this.desired.addReference(item);
    for (const item of before?.items ?? []) this.desired.removeReference(item);
    const released = (before?.owners ?? []).filter((owner) => !after?.owners.includes(owner));
    for (const owner of released) this.#marks.release(owner);
    for (const item of before?.items ?? []) this.#indexService(item, undefined);
    for (const item of after?.items ?? []) this.#indexService(item, route);
    if (after === undefined) {
      this.#routes.delete(id);
      this.#waitingForMark.delete(id);
    } else this.#routes.set(id, after);
    const again = new Set([...yielding, ...(released.length > 0 ? this.#waitingForMark : [])]);
    again.delete(id);
    for (const other of again) this.#replace(other, this.#routes.get(other)?.route);
  }

  #compile(route: Route): CompiledRoute {
    const plan = trafficPlan(route, allowsOwnVips(route, this.#facts.addresses));
    if (this.#usesIptables(route)) return { route, items: healthCheckItems(plan), owners: [] };
    const items = compileIpvsItems(plan, this.#compileOptions);
    const owners = markOwners(plan);
    if (owners.every((owner) => this.#marks.allocate(owner) !== undefined)) {
      this.#waitingForMark.delete(route.id);
      return { route, items, owners };
    }
    // One of two is of no use to it, and perhaps to somebody else.
    for (const owner of owners) this.#marks.release(owner);
    if (!this.#waitingForMark.has(route.id)) {
      this.#waitingForMark.add(route.id);
      this.#options.onWarning(
        `no mark is left for ${route.name}: --ipvs-fwmark-range is too small`,
      );
    }
    return { route, items, owners: [] };
  }

  #indexService(item: Item, route: Route | undefined): void {
    if (item.kind !== 'service') return;
    const key = serviceText(item.service);
    this.#changedServices.add(key);
    if (route === undefined) this.#routesByService.delete(key);
    else this.#routesByService.set(key, route);
  }
}
