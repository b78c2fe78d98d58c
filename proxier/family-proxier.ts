/** Syncs one IP family: passes changes to the backend, then deletes stale conntrack entries. */
import { isDeepStrictEqual } from 'node:util';
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import type { LocalhostNodePort } from '../localhost/endpoint-picker.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import type { ServiceHealth } from '../services/service-health.ts';
import { localhostNodePort } from '../traffic/localhost-node-port.ts';
import type { Backend, RefusalState } from './backend.ts';
import { type CleanupScope, type FlowTuple, StaleFlowTracker } from './stale-flows.ts';

/** The conntrack entries of one family. */
export interface ConntrackTable {
  /**
   * Deletes stale entries of the given protocols.
   * @param origDst if set, only entries with this original destination are checked.
   * @returns the number of deleted entries.
   */
  deleteStale(
    isStale: (flow: FlowTuple, protocol: Protocol) => boolean,
    protocols: Iterable<Protocol>,
    origDst: string | undefined,
  ): Promise<number>;
}

/** The result of one sync, for logs and metrics. */
export interface SyncReport {
  readonly family: IpFamily;
  readonly full: boolean;
  /** Whether there were changes since the last successful sync. */
  readonly changed: boolean;
  readonly seconds: number;
  /** Seconds spent in `Backend.apply`. */
  readonly applySeconds: number;
  readonly written: number;
  /** See `ApplyReport`. */
  readonly rulesWritten: ReadonlyMap<string, number> | undefined;
  /** Seconds spent on stale conntrack entries; undefined if no entry could be stale. */
  readonly conntrackSeconds: number | undefined;
  readonly deletedFlows: number;
  /** The error of deleting stale conntrack entries; undefined without error. The next sync retries. */
  readonly conntrackError: unknown;
  /** Changed answers of health check node ports. The corresponding rules are now in force. */
  readonly healthChanges: readonly ServiceHealth[];
  /** Changed node ports for the localhost proxy, see `proxiesLocalhost`; a removed node port has port 0. */
  readonly localhostNodePorts: readonly LocalhostNodePort[];
  /** Trigger times of the changes that are now in force, in milliseconds since 1970. */
  readonly triggerTimes: readonly number[];
  /** Services whose Routes changed since the last successful sync. */
  readonly services: ReadonlySet<ObjectKey>;
}

/** Maximum number of trigger times kept while syncs fail; the oldest are dropped. */
const MAX_TRIGGERS = 10_000;

/** Options of one IP family. */
export interface FamilyProxierOptions {
  /** See `StaleFlowTracker`. */
  readonly resetsTcp?: boolean;
  /** Whether to report `localhostNodePorts`, for modes whose rules cannot serve the loopback address. */
  readonly proxiesLocalhost?: boolean;
  /** What Services need besides rules, and may have only after them. Awaited in the first sync, once its rules are in force. */
  readonly afterFirstRules?: () => Promise<void>;
  /** Monotonic clock in milliseconds, for durations in reports. */
  readonly now?: () => number;
}

/**
 * Syncs one IP family. Callers pass in changes at any time. `sync` applies all pending changes; if it fails, it keeps
 * them for the next sync.
 */
export class FamilyProxier {
  readonly family: IpFamily;
  readonly backend: Backend;
  readonly #conntrack: ConntrackTable;
  readonly #now: () => number;
  readonly #staleFlows: StaleFlowTracker;
  readonly #proxiesLocalhost: boolean;
  readonly #afterFirstRules: (() => Promise<void>) | undefined;
  #health = new Map<ObjectKey, ServiceHealth>();
  /** By Route id. */
  #localhostNodePorts = new Map<string, LocalhostNodePort>();
  #nodeAddresses: NodeAddresses = { addresses: [], primary: [] };
  #serviceCidrs: readonly string[] | undefined;
  #triggerTimes: readonly number[] = [];
  #services = new Set<ObjectKey>();
  #dirty = true;
  #isFirst = true;

  constructor(
    backend: Backend,
    conntrack: ConntrackTable,
    {
      resetsTcp = false,
      proxiesLocalhost = false,
      afterFirstRules,
      now = () => performance.now(),
    }: FamilyProxierOptions = {},
  ) {
    this.#now = now;
    this.#proxiesLocalhost = proxiesLocalhost;
    this.#afterFirstRules = afterFirstRules;
    this.#staleFlows = new StaleFlowTracker(resetsTcp);
    this.family = backend.family;
    this.backend = backend;
    this.#conntrack = conntrack;
  }

  /** Whether there are changes since the last successful sync. */
  get hasChanges(): boolean {
    return this.#dirty;
  }

  /** @returns whether the addresses changed. */
  setNodeAddresses(nodeAddresses: NodeAddresses): boolean {
    if (isDeepStrictEqual(nodeAddresses, this.#nodeAddresses)) return false;
    this.#nodeAddresses = nodeAddresses;
    this.backend.setNodeAddresses(nodeAddresses);
    this.#dirty = true;
    return true;
  }

  /** See `Backend.setServiceCidrs`. */
  setServiceCidrs(cidrs: readonly string[]): void {
    if (this.backend.setServiceCidrs === undefined) return;
    if (isDeepStrictEqual(cidrs, this.#serviceCidrs)) return;
    this.#serviceCidrs = cidrs;
    this.backend.setServiceCidrs(cidrs);
    this.#dirty = true;
  }

  /** See `Backend.setRefusedServices`. */
  setRefusedServices(changes: ReadonlyMap<ObjectKey, RefusalState>): void {
    if (changes.size === 0 || this.backend.setRefusedServices === undefined) return;
    this.backend.setRefusedServices(changes);
    this.#dirty = true;
  }

  /** Passes in changed Routes. @param before the previous version of each upserted Route that existed. */
  update(
    upserts: readonly Route[],
    removals: readonly Route[],
    before: ReadonlyMap<string, Route>,
  ): void {
    if (upserts.length === 0 && removals.length === 0) return;
    for (const route of removals) this.#replace(route, undefined);
    for (const route of upserts) this.#replace(before.get(route.id), route);
    for (const { serviceKey } of [...removals, ...upserts]) this.#services.add(serviceKey);
    this.backend.update(
      upserts,
      removals.map((route) => route.id),
    );
    this.#dirty = true;
  }

  /**
   * Passes in changed answers of health check node ports. As in kube-proxy, `sync` reports the answers only when the
   * corresponding rules are in force.
   */
  updateHealth(changes: readonly ServiceHealth[]): void {
    if (changes.length === 0) return;
    for (const health of changes) this.#health.set(health.serviceKey, health);
    this.#dirty = true;
  }

  /** Records the trigger times of the changes passed to `update()`, for the network programming latency metric. */
  addTriggers(times: readonly number[]): void {
    if (times.length > 0)
      this.#triggerTimes = [...this.#triggerTimes, ...times].slice(-MAX_TRIGGERS);
  }

  /** Returns the trigger times since the last sync, and clears the list. */
  takeTriggers(): readonly number[] {
    const times = this.#triggerTimes;
    this.#triggerTimes = [];
    return times;
  }

  /**
   * Writes the desired state to the kernel, then deletes stale conntrack entries.
   * @param full see `Backend.apply`.
   * @throws errors of the backend. No change is lost, but the next sync must be full.
   */
  async sync(full: boolean): Promise<SyncReport> {
    const started = this.#now();
    const changed = this.#dirty;
    this.#dirty = false;
    // Take the cleanup scope and other pending changes before writing rules. Changes that arrive meanwhile are in force
    // only after the next sync. A conntrack entry deleted before its rules change would be created again by the old
    // rules.
    const scope = this.#staleFlows.takeCleanupScope();
    const health = this.#health;
    this.#health = new Map();
    const localhostNodePorts = this.#localhostNodePorts;
    this.#localhostNodePorts = new Map();
    const services = this.#services;
    this.#services = new Set();
    const triggerTimes = this.takeTriggers();
    try {
      const { written, rulesWritten } = await this.backend.apply(full);
      const applySeconds = (this.#now() - started) / 1000;
      if (this.#isFirst) await this.#afterFirstRules?.();
      // After a restart or drift any entry may be stale, because other rules may have created it.
      const mayAllBeStale = this.#isFirst || (full && written > 0);
      const cleanup = await this.#deleteStaleFlows(
        mayAllBeStale ? this.#staleFlows.fullCleanupScope(scope) : scope,
      );
      this.#isFirst = false;
      const seconds = (this.#now() - started) / 1000;
      const { family } = this;
      const apply = { written, rulesWritten, applySeconds };
      return {
        family,
        full,
        changed,
        seconds,
        ...apply,
        ...cleanup,
        triggerTimes,
        services,
        healthChanges: [...health.values()],
        localhostNodePorts: [...localhostNodePorts.values()],
      };
    } catch (error) {
      this.#health = new Map([...health, ...this.#health]);
      this.#localhostNodePorts = new Map([...localhostNodePorts, ...this.#localhostNodePorts]);
      this.#dirty ||= changed;
      this.#services = new Set([...services, ...this.#services]);
      this.#triggerTimes = [...triggerTimes, ...this.takeTriggers()];
      if (scope !== undefined) this.#staleFlows.restoreCleanupScope(scope);
      throw error;
    }
  }

  #replace(before: Route | undefined, after: Route | undefined): void {
    this.#staleFlows.replaceRoute(before, after);
    if (this.#proxiesLocalhost) this.#replaceLocalhostNodePort(before, after);
  }

  #replaceLocalhostNodePort(before: Route | undefined, after: Route | undefined): void {
    const old = before && localhostNodePort(before);
    const nodePort = after && localhostNodePort(after);
    if (isDeepStrictEqual(old, nodePort)) return;
    if (nodePort !== undefined) this.#localhostNodePorts.set(nodePort.id, nodePort);
    else if (old !== undefined) this.#localhostNodePorts.set(old.id, { ...old, port: 0 });
  }

  async #deleteStaleFlows(
    scope: CleanupScope | undefined,
  ): Promise<Pick<SyncReport, 'deletedFlows' | 'conntrackError' | 'conntrackSeconds'>> {
    if (scope === undefined || scope.vips.size + scope.nodePorts.size === 0) {
      return { deletedFlows: 0, conntrackError: undefined, conntrackSeconds: undefined };
    }
    const started = this.#now();
    const elapsedSeconds = () => (this.#now() - started) / 1000;
    const addresses = new Set(this.#nodeAddresses.addresses);
    const isNodeAddress = (address: string) => addresses.has(address);
    try {
      const deletedFlows = await this.#conntrack.deleteStale(
        (flow, protocol) => this.#staleFlows.isStale(flow, protocol, scope, isNodeAddress),
        scope.protocols,
        onlyVip(scope),
      );
      return { deletedFlows, conntrackError: undefined, conntrackSeconds: elapsedSeconds() };
    } catch (conntrackError) {
      this.#staleFlows.restoreCleanupScope(scope);
      return { deletedFlows: 0, conntrackError, conntrackSeconds: elapsedSeconds() };
    }
  }
}

/**
 * The VIP of a scope with one VIP and no node port; otherwise undefined. The kernel can filter a dump by one
 * destination. For several VIPs one dump of all entries is cheaper.
 */
function onlyVip({ vips, nodePorts }: CleanupScope): string | undefined {
  const [vip] = vips.keys();
  return vips.size === 1 && nodePorts.size === 0 ? vip : undefined;
}
