/** What one family should have in mode ipvs, Route by Route. */
import { isDeepStrictEqual } from 'node:util';
import { isLinkLocal } from '../api/addresses.ts';
import type { AllPortsBy } from '../config/mode-values.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { Ruleset } from '../iptables/ruleset.ts';
import type { IpvsDestinationKey, IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import type { NodeFacts } from '../proxier/backend.ts';
import { type Route, vipsOf } from '../services/route.ts';
import { type NodePortOptions, namedNodePortAddresses } from '../traffic/options.ts';
import { allowsOwnVips, dependsOnNodeAddresses, trafficPlan } from '../traffic/plan.ts';
import { type CompileOptions, compilePlan, healthCheckItems, markOwners } from './compile.ts';
import type { Life } from './draining.ts';
import { type Item, serviceText } from './items.ts';
import { LingeringVips } from './lingering.ts';
import { type Marks, verdictMarks } from './marks.ts';
import { NodePortConflicts } from './node-port-conflicts.ts';
import { ipvsStanding, type RuleOptions } from './rules.ts';
import { Wanted } from './wanted.ts';

export interface PlanOptions extends RuleOptions, NodePortOptions {
  readonly scheduler: string;
  /** Who serves all-ports Services (`--ipvs-all-ports`). */
  readonly allPorts: AllPortsBy;
  readonly onWarning: (message: string) => void;
}

interface RouteRecord {
  readonly route: Route;
  readonly items: readonly Item[];
  readonly owners: readonly string[];
}

/**
 * What one family should have in IPVS, ipsets and rules, kept up to date Route by Route. Pure but
 * for its memory: it touches no kernel.
 */
export class IpvsPlan {
  readonly wanted = new Wanted();
  readonly lingering = new LingeringVips(this.wanted);
  readonly ruleset: Ruleset;
  readonly #options: PlanOptions;
  readonly #marks: Marks;
  readonly #routes = new Map<string, RouteRecord>();
  readonly #nodePorts = new NodePortConflicts();
  /** By service: whose endpoints are alive decides on what drains. */
  readonly #routeOf = new Map<string, Route>();
  #touched = new Set<string>();
  /** Ids of Routes for which no mark was left; they are rejected until there is one. */
  readonly #waiting = new Set<string>();
  #facts: NodeFacts = { addresses: [], primary: [] };
  #compileOptions: CompileOptions;

  constructor(options: PlanOptions, marks: Marks) {
    this.#options = options;
    this.#marks = marks;
    this.#compileOptions = this.#optionsFor(this.#facts);
    this.ruleset = new Ruleset(this.#ruleOptions(), this.#standing());
  }

  /** New facts about the node: compiles anew what depends on them. */
  setFacts(facts: NodeFacts): void {
    const [now, then] = [facts.addresses, this.#facts.addresses];
    const moved = (vip: string) => now.includes(vip) !== then.includes(vip);
    this.#facts = facts;
    // What is the node's own now must reach its listeners.
    for (const address of facts.addresses) this.lingering.release(address);
    const before = this.#compileOptions.nodePortAddresses;
    this.#compileOptions = this.#optionsFor(facts);
    this.ruleset.setOptions(this.#ruleOptions(), this.#standing());
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
      if (record !== undefined) this.lingering.keep(record.route.serviceKey, record.items);
      this.#replace(id, undefined);
      this.ruleset.update([], [id]);
    }
    for (const route of upserts) {
      this.#replace(route.id, route);
      if (this.#isByRules(route)) this.ruleset.update([route], []);
    }
  }

  /** Services of Routes that changed since the last call: what drains there may be over. */
  takeTouched(): ReadonlySet<string> {
    const touched = this.#touched;
    this.#touched = new Set();
    return touched;
  }

  /** How many Services wait for a mark. */
  get waiting(): number {
    const services = [...this.#waiting].map((id) => this.#routes.get(id)?.route.serviceKey);
    return new Set(services).size;
  }

  /** Whether the node has this address other than on the agent's dummy device. */
  isNodeAddress(address: string): boolean {
    return this.#facts.addresses.includes(address);
  }

  /** Whose an IPVS service is (`ns/name` or `ns/name:port`), by its text. */
  nameOf(service: string): string | undefined {
    return this.#routeOf.get(service)?.name;
  }

  /** What became of the endpoint that a destination stands for. */
  lifeOf(service: IpvsServiceKey, { address, port }: IpvsDestinationKey): Life {
    const route = this.#routeOf.get(serviceText(service));
    if (route === undefined) return 'unready';
    const isThis = (endpoint: Endpoint) =>
      endpoint.address === address && (endpoint.port ?? 0) === port;
    if (route.aliveEndpoints.some(isThis)) return 'alive';
    return route.unreadyEndpoints.some(isThis) ? 'unready' : 'gone';
  }

  #isByRules(route: Route): boolean {
    return this.#options.allPorts === 'iptables' && route.match.kind !== 'port';
  }

  #standing() {
    return ipvsStanding(this.#options, this.#options.allPorts === 'iptables');
  }

  #ruleOptions() {
    return { ...this.#options, nodeAddresses: this.#facts.addresses, resetsTcp: false };
  }

  #optionsFor(facts: NodeFacts): CompileOptions {
    const { family, scheduler, markRange } = this.#options;
    const addresses = namedNodePortAddresses(this.#options, facts);
    return {
      family,
      scheduler,
      nodeAddresses: facts.addresses,
      // IPVS lets no packet from a loopback address leave the host (crosses_local_route_boundary).
      nodePortAddresses: addresses.filter((each) => !isLinkLocal(each)),
      verdicts: verdictMarks(markRange),
      isVip: (ip, protocol, port) => this.#nodePorts.isVip(ip, protocol, port),
      markOf: (owner) => this.#marks.take(owner),
    };
  }

  #replace(id: string, route: Route | undefined): void {
    const before = this.#routes.get(id);
    const yielding = this.#nodePorts.replace(before?.route, route);
    const after = route === undefined ? undefined : this.#compile(route);
    for (const item of after?.items ?? []) this.wanted.hold(item);
    for (const item of before?.items ?? []) this.wanted.release(item);
    const released = (before?.owners ?? []).filter((owner) => !after?.owners.includes(owner));
    for (const owner of released) this.#marks.release(owner);
    for (const item of before?.items ?? []) this.#touch(item, undefined);
    for (const item of after?.items ?? []) this.#touch(item, route);
    if (after === undefined) {
      this.#routes.delete(id);
      this.#waiting.delete(id);
    } else this.#routes.set(id, after);
    const again = new Set([...yielding, ...(released.length > 0 ? this.#waiting : [])]);
    again.delete(id);
    for (const other of again) this.#replace(other, this.#routes.get(other)?.route);
  }

  #compile(route: Route): RouteRecord {
    const plan = trafficPlan(route, allowsOwnVips(route, this.#facts.addresses));
    if (this.#isByRules(route)) return { route, items: healthCheckItems(plan), owners: [] };
    const items = compilePlan(plan, this.#compileOptions);
    const owners = markOwners(plan);
    if (owners.every((owner) => this.#marks.take(owner) !== undefined)) {
      this.#waiting.delete(route.id);
      return { route, items, owners };
    }
    // One of two is of no use to it, and perhaps to somebody else.
    for (const owner of owners) this.#marks.release(owner);
    if (!this.#waiting.has(route.id)) {
      this.#waiting.add(route.id);
      this.#options.onWarning(
        `no mark is left for ${route.name}: --ipvs-fwmark-range is too small`,
      );
    }
    return { route, items, owners: [] };
  }

  #touch(item: Item, route: Route | undefined): void {
    if (item.kind !== 'service') return;
    const key = serviceText(item.service);
    this.#touched.add(key);
    if (route === undefined) this.#routeOf.delete(key);
    else this.#routeOf.set(key, route);
  }
}
