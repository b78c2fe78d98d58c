import { isDeepStrictEqual } from 'node:util';
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { Route } from '../services/route.ts';
import type { ServiceHealth } from '../services/service-health.ts';
import type { Backend, NodeFacts } from './backend.ts';
import { type Flow, FlowOwners, type Suspects } from './stale-flows.ts';

/** Looks at conntrack's UDP flows of one family and forgets some. */
export interface FlowTable {
  /**
   * Forgets the UDP flows for which `isStale` says so.
   * @param origDst when given, only flows to this address are looked at.
   * @returns how many were forgotten.
   */
  forget(isStale: (flow: Flow) => boolean, origDst: string | undefined): Promise<number>;
}

/** What happened in one sync, for logs and metrics. */
export interface SyncReport {
  readonly family: IpFamily;
  readonly full: boolean;
  readonly seconds: number;
  readonly written: number;
  readonly forgottenFlows: number;
  /** Why stale UDP flows could not be forgotten; they are tried again with the next sync. */
  readonly flowError: unknown;
  /** What health check node ports may say from now on, where that changed. */
  readonly health: readonly ServiceHealth[];
}

/**
 * One family: what is wanted, and bringing the kernel there. Changes are handed over at any time;
 * `sync` applies them all, and keeps what it could not for the next time.
 */
export class FamilyProxier {
  readonly family: IpFamily;
  readonly #backend: Backend;
  readonly #flows: FlowTable;
  readonly #now: () => number;
  readonly #owners = new FlowOwners();
  #health = new Map<ObjectKey, ServiceHealth>();
  #facts: NodeFacts = { addresses: [], primary: undefined };
  #dirty = true;
  #full = true;
  #isFirst = true;

  /** @param now milliseconds, for what reports say of the time taken. */
  constructor(backend: Backend, flows: FlowTable, now = () => performance.now()) {
    this.#now = now;
    this.family = backend.family;
    this.#backend = backend;
    this.#flows = flows;
  }

  /** @returns whether there is something to sync. */
  get needsSync(): boolean {
    return this.#dirty || this.#full;
  }

  /** The next sync compares everything with the kernel. */
  requireFull(): void {
    this.#full = true;
  }

  /** @returns whether they are other than before. */
  setNodeFacts(facts: NodeFacts): boolean {
    if (isDeepStrictEqual(facts, this.#facts)) return false;
    this.#facts = facts;
    this.#backend.setFacts(facts);
    this.#dirty = true;
    return true;
  }

  /** Hands over changes; `before` has the earlier version of those that existed. */
  update(
    upserts: readonly Route[],
    removals: readonly Route[],
    before: ReadonlyMap<string, Route>,
  ): void {
    if (upserts.length === 0 && removals.length === 0) return;
    for (const route of removals) this.#owners.replace(route, undefined);
    for (const route of upserts) this.#owners.replace(before.get(route.id), route);
    this.#backend.update(
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

  /** Whether the rules still stand. */
  intact(): Promise<boolean> {
    return this.#backend.intact();
  }

  /**
   * Brings the kernel to what is wanted, then forgets UDP flows that the rules no longer make.
   * @throws what the backend throws; nothing is lost, and the next sync is full.
   */
  async sync(): Promise<SyncReport> {
    const started = this.#now();
    const full = this.#full;
    this.#dirty = false;
    this.#full = false;
    // Taken before the rules are written: what is handed over meanwhile comes into force with the
    // next sync, and a flow that is forgotten before its rules changed would come back.
    const suspects = this.#owners.takeSuspects();
    const health = this.#health;
    this.#health = new Map();
    try {
      const { written } = await this.#backend.apply(full);
      // Rules that were not what they should be may have let any flow astray.
      const isUnknown = this.#isFirst || (full && written > 0);
      const flows = await this.#forgetStaleFlows(
        isUnknown ? this.#owners.everything(suspects) : suspects,
      );
      this.#isFirst = false;
      const seconds = (this.#now() - started) / 1000;
      return {
        family: this.family,
        full,
        seconds,
        written,
        ...flows,
        health: [...health.values()],
      };
    } catch (error) {
      this.#full = true;
      this.#health = new Map([...health, ...this.#health]);
      if (suspects !== undefined) this.#owners.returnSuspects(suspects);
      throw error;
    }
  }

  async #forgetStaleFlows(
    suspects: Suspects | undefined,
  ): Promise<{ forgottenFlows: number; flowError: unknown }> {
    if (suspects === undefined || suspects.vips.size + suspects.nodePorts.size === 0) {
      return { forgottenFlows: 0, flowError: undefined };
    }
    const addresses = new Set(this.#facts.addresses);
    const isNodeAddress = (address: string) => addresses.has(address);
    try {
      const forgottenFlows = await this.#flows.forget(
        (flow) => this.#owners.isStale(flow, suspects, isNodeAddress),
        onlyVip(suspects),
      );
      return { forgottenFlows, flowError: undefined };
    } catch (flowError) {
      this.#owners.returnSuspects(suspects);
      return { forgottenFlows: 0, flowError };
    }
  }
}

/** The kernel can look for one destination by itself; for several, one look at all is cheaper. */
function onlyVip({ vips, nodePorts }: Suspects): string | undefined {
  const [vip] = vips.keys();
  return vips.size === 1 && nodePorts.size === 0 ? vip : undefined;
}
