/** One family of the proxier: what is to be handed to its backend, and what follows when that has applied it. */
import { isDeepStrictEqual } from 'node:util';
import type { IpFamily, ObjectKey, Protocol } from '../api/objects.ts';
import type { LocalhostNodePort } from '../localhost/endpoint-picker.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import type { ServiceHealth } from '../services/service-health.ts';
import { localhostNodePort } from '../traffic/localhost-node-port.ts';
import type { Backend } from './backend.ts';
import { type CleanupScope, type FlowTuple, StaleFlowTracker } from './stale-flows.ts';

/** The conntrack entries of one family. */
export interface ConntrackTable {
  /**
   * Deletes the entries of these protocols for which `isStale` says so.
   * @param origDst when given, only entries with this original destination are looked at.
   * @returns how many were deleted.
   */
  deleteStale(
    isStale: (flow: FlowTuple, protocol: Protocol) => boolean,
    protocols: Iterable<Protocol>,
    origDst: string | undefined,
  ): Promise<number>;
}

/** What happened in one sync, for logs and metrics. */
export interface SyncReport {
  readonly family: IpFamily;
  readonly full: boolean;
  /** Something was handed over since the last sync that succeeded. */
  readonly changed: boolean;
  readonly seconds: number;
  /** Seconds of it that the backend took. */
  readonly applySeconds: number;
  readonly written: number;
  /** See `ApplyReport`. */
  readonly rulesWritten: ReadonlyMap<string, number> | undefined;
  /** Seconds that it took to look for stale conntrack entries; undefined when there was no reason to look. */
  readonly flowSeconds: number | undefined;
  readonly forgottenFlows: number;
  /** Why stale conntrack entries could not be deleted; they are tried again with the next sync. */
  readonly flowError: unknown;
  /** What health check node ports may say from now on, where that changed. */
  readonly health: readonly ServiceHealth[];
  /** What is to be served on the loopback address from now on, where that changed; see `proxiesLocalhost`. */
  readonly localhostNodePorts: readonly LocalhostNodePort[];
  /** When what is now in force was triggered, in milliseconds since 1970. */
  readonly triggerTimes: readonly number[];
}

/** More than these are not kept while syncs fail: the oldest go. */
const MAX_TRIGGERS = 10_000;

export interface FamilyProxierOptions {
  /** See `FlowOwners`. */
  readonly resetsTcp?: boolean;
  /** Whether reports have `localhostNodePorts`; for modes whose rules cannot serve the loopback address. */
  readonly proxiesLocalhost?: boolean;
  /** Milliseconds, for what reports say of the time taken. */
  readonly now?: () => number;
}

/**
 * One family: what is wanted, and bringing the kernel there. Changes are handed over at any time;
 * `sync` applies them all, and keeps what it could not for the next time.
 */
export class FamilyProxier {
  readonly family: IpFamily;
  readonly backend: Backend;
  readonly #conntrack: ConntrackTable;
  readonly #now: () => number;
  readonly #staleFlows: StaleFlowTracker;
  readonly #proxiesLocalhost: boolean;
  #health = new Map<ObjectKey, ServiceHealth>();
  /** By id of the Route. */
  #localhostNodePorts = new Map<string, LocalhostNodePort>();
  #nodeAddresses: NodeAddresses = { addresses: [], primary: [] };
  #triggerTimes: readonly number[] = [];
  #dirty = true;
  #isFirst = true;

  constructor(
    backend: Backend,
    flows: ConntrackTable,
    {
      resetsTcp = false,
      proxiesLocalhost = false,
      now = () => performance.now(),
    }: FamilyProxierOptions = {},
  ) {
    this.#now = now;
    this.#proxiesLocalhost = proxiesLocalhost;
    this.#staleFlows = new StaleFlowTracker(resetsTcp);
    this.family = backend.family;
    this.backend = backend;
    this.#conntrack = flows;
  }

  /** Something was handed over since the last sync that succeeded. */
  get hasChanges(): boolean {
    return this.#dirty;
  }

  /** @returns whether they are other than before. */
  setNodeAddresses(facts: NodeAddresses): boolean {
    if (isDeepStrictEqual(facts, this.#nodeAddresses)) return false;
    this.#nodeAddresses = facts;
    this.backend.setNodeAddresses(facts);
    this.#dirty = true;
    return true;
  }

  /** See `Backend.setRefused`. */
  setRefusedServices(changes: ReadonlyMap<ObjectKey, boolean>): void {
    if (changes.size === 0 || this.backend.setRefusedServices === undefined) return;
    this.backend.setRefusedServices(changes);
    this.#dirty = true;
  }

  /** Hands over changes; `before` has the earlier version of those that existed. */
  update(
    upserts: readonly Route[],
    removals: readonly Route[],
    before: ReadonlyMap<string, Route>,
  ): void {
    if (upserts.length === 0 && removals.length === 0) return;
    for (const route of removals) this.#replace(route, undefined);
    for (const route of upserts) this.#replace(before.get(route.id), route);
    this.backend.update(
      upserts,
      removals.map((route) => route.id),
    );
    this.#dirty = true;
  }

  /**
   * Hands over what health check node ports are to say. It is held back until the rules that make
   * it true are in force, as in kube-proxy.
   */
  updateHealth(changes: readonly ServiceHealth[]): void {
    if (changes.length === 0) return;
    for (const health of changes) this.#health.set(health.serviceKey, health);
    this.#dirty = true;
  }

  /** Hands over when that was triggered which was handed over with `update`. */
  addTriggers(times: readonly number[]): void {
    if (times.length > 0)
      this.#triggerTimes = [...this.#triggerTimes, ...times].slice(-MAX_TRIGGERS);
  }

  /** Triggers since the last sync; they are handed out once. */
  takeTriggers(): readonly number[] {
    const times = this.#triggerTimes;
    this.#triggerTimes = [];
    return times;
  }

  /**
   * Brings the kernel to what is wanted, then deletes conntrack entries that the rules no longer make.
   * @param full See `Backend.apply`.
   * @throws what the backend throws; nothing is lost, and the next sync has to be full.
   */
  async sync(full: boolean): Promise<SyncReport> {
    const started = this.#now();
    const changed = this.#dirty;
    this.#dirty = false;
    // Taken before the rules are written: what is handed over meanwhile comes into force with the
    // next sync, and a flow that is forgotten before its rules changed would come back.
    const suspects = this.#staleFlows.takeCleanupScope();
    const health = this.#health;
    this.#health = new Map();
    const localhostNodePorts = this.#localhostNodePorts;
    this.#localhostNodePorts = new Map();
    const triggerTimes = this.takeTriggers();
    try {
      const { written, rulesWritten } = await this.backend.apply(full);
      const applySeconds = (this.#now() - started) / 1000;
      // Rules that were not what they should be may have let any flow astray.
      const isUnknown = this.#isFirst || (full && written > 0);
      const flows = await this.#deleteStaleFlows(
        isUnknown ? this.#staleFlows.fullCleanupScope(suspects) : suspects,
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
        ...flows,
        triggerTimes,
        health: [...health.values()],
        localhostNodePorts: [...localhostNodePorts.values()],
      };
    } catch (error) {
      this.#health = new Map([...health, ...this.#health]);
      this.#localhostNodePorts = new Map([...localhostNodePorts, ...this.#localhostNodePorts]);
      this.#dirty ||= changed;
      this.#triggerTimes = [...triggerTimes, ...this.takeTriggers()];
      if (suspects !== undefined) this.#staleFlows.restoreCleanupScope(suspects);
      throw error;
    }
  }

  #replace(before: Route | undefined, after: Route | undefined): void {
    this.#staleFlows.replace(before, after);
    if (this.#proxiesLocalhost) this.#replaceLocalhostNodePort(before, after);
  }

  #replaceLocalhostNodePort(before: Route | undefined, after: Route | undefined): void {
    const known = before && localhostNodePort(before);
    const nodePort = after && localhostNodePort(after);
    if (isDeepStrictEqual(known, nodePort)) return;
    if (nodePort !== undefined) this.#localhostNodePorts.set(nodePort.id, nodePort);
    else if (known !== undefined) this.#localhostNodePorts.set(known.id, { ...known, port: 0 });
  }

  async #deleteStaleFlows(
    suspects: CleanupScope | undefined,
  ): Promise<Pick<SyncReport, 'forgottenFlows' | 'flowError' | 'flowSeconds'>> {
    if (suspects === undefined || suspects.vips.size + suspects.nodePorts.size === 0) {
      return { forgottenFlows: 0, flowError: undefined, flowSeconds: undefined };
    }
    const started = this.#now();
    const flowSeconds = () => (this.#now() - started) / 1000;
    const addresses = new Set(this.#nodeAddresses.addresses);
    const isNodeAddress = (address: string) => addresses.has(address);
    try {
      const forgottenFlows = await this.#conntrack.deleteStale(
        (flow, protocol) => this.#staleFlows.isStale(flow, protocol, suspects, isNodeAddress),
        suspects.protocols,
        onlyVip(suspects),
      );
      return { forgottenFlows, flowError: undefined, flowSeconds: flowSeconds() };
    } catch (flowError) {
      this.#staleFlows.restoreCleanupScope(suspects);
      return { forgottenFlows: 0, flowError, flowSeconds: flowSeconds() };
    }
  }
}

/** The kernel can look for one destination by itself; for several, one look at all is cheaper. */
function onlyVip({ vips, nodePorts }: CleanupScope): string | undefined {
  const [vip] = vips.keys();
  return vips.size === 1 && nodePorts.size === 0 ? vip : undefined;
}
