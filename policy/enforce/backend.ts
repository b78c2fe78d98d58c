/** Writes the policy table of one IP family to the kernel. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFormatter } from '../../netlink/core/address.ts';
import { ENOENT, hasErrno } from '../../netlink/core/error.ts';
import {
  type NftCounter,
  type NftElement,
  type NftOperation,
  NftRefusedError,
} from '../../netlink/nftables/tables.ts';
import type { RuleTable } from '../../nft/table.ts';
import { SerialQueue } from '../../sync/serial-queue.ts';
import { TimeSlice } from '../../sync/time-slice.ts';
import { kernelChainNames, kernelChains } from '../compile/chains.ts';
import type {
  FqdnContent,
  FqdnElement,
  FqdnEntry,
  PolicyChange,
  PolicyElement,
  PolicySetChain,
  PolicyState,
} from '../compile/change.ts';
import { DNS_QUEUE_CHAIN, FORGED_ANSWERS_COUNTER } from '../compile/dns-chains.ts';
import {
  fqdnEntryElement,
  type KernelElement,
  readFqdnEntry,
  setElement,
} from '../compile/element.ts';
import {
  DENY_VERDICTS,
  type DenyVerdict,
  denyChain,
  LEGACY_NAMES,
  NFT_SET_NAMES,
  type NftSetName,
  type PolicyTableOptions,
} from '../compile/policy-table.ts';
import { DIRECTIONS, type Direction } from '../model/terms.ts';
import { isAnswerSet, readAnswers } from './answers.ts';
import { PolicyRefusedError } from './policy-refused-error.ts';
import { QueuedResolvers } from './queued-resolvers.ts';
import {
  activeTable,
  type PolicyTables,
  rebuild,
  replaceChainRules,
  type TableContent,
} from './rebuild.ts';
import { SetTtls } from './set-ttls.ts';

export interface PolicyBackendOptions extends PolicyTableOptions {
  /** An optional feature does not work on this node; policies are enforced without it. */
  readonly onWarning: (message: string, details: Readonly<Record<string, unknown>>) => void;
  /** Monotonic clock in milliseconds. */
  readonly now?: () => number;
}

/**
 * Packets denied by one tier in one direction. An external deletion of the table resets the count.
 */
export interface DeniedPackets {
  readonly denial: DenyVerdict;
  readonly direction: Direction;
  readonly packets: number;
}

/**
 * Maximum attempts to add addresses. An element may expire in the transaction that refreshes it,
 * after the add and before the delete (`SetTtls.refresh`). Then the transaction is retried.
 */
const ADD_ATTEMPTS = 3;

/** Additions that wait in the queue, collected into one transaction. */
interface PendingAddition extends FqdnContent {
  readonly elements: FqdnElement[];
  readonly entries: FqdnEntry[];
  readonly done: Promise<void>;
}

/**
 * Executes calls one after the other, in the order of calls. Changes do not read the kernel: the
 * backend records what it wrote. After a failed change or an external change the content of the
 * table is unknown, and only `replaceAll` restores a known state.
 */
export class PolicyBackend {
  readonly family: IpFamily;
  readonly #tables: PolicyTables;
  readonly #options: PolicyBackendOptions;
  readonly #now: () => number;
  readonly #queue = new SerialQueue();
  #pendingAddition: PendingAddition | undefined;
  /**
   * Whether the content of the table is known. False before `replaceAll`, after a failure, and
   * after an external change.
   */
  #isInSync = false;
  /**
   * Whether `replaceAll` has succeeded once. Before that, the table contains list ids that an
   * earlier agent assigned.
   */
  #hasWritten = false;
  /** Whether a call of `replaceAll` is done, even if it failed. Before that, no table may exist. */
  #hasTried = false;
  /** True from the call of `replaceAll` until it is done. */
  #isReplacing = false;
  #denied: readonly DeniedPackets[] = [];
  #forgedAnswers = 0;
  /** Why the table does not queue DNS packets; undefined: it does. */
  #queueError: NftRefusedError | undefined;
  readonly #resolvers: QueuedResolvers;
  #onInvalidated: (reason: string, isExternal: boolean) => void = () => {};
  /** Names of the chains of policy sets in the kernel. */
  #chains = new Set<string>();
  #sizes = new Map<NftSetName, number>();
  readonly #fqdnPeerTtls = new SetTtls('fqdn-peers');
  readonly #fqdnCacheTtls = new SetTtls('fqdn-cache');

  constructor(tables: PolicyTables, options: PolicyBackendOptions) {
    this.family = options.family;
    this.#tables = tables;
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    this.#resolvers = new QueuedResolvers(this.#now);
  }

  /**
   * Number of elements by set. The agent counts the elements of domain names itself; expired ones count until they are
   * pruned.
   */
  setSizes(): ReadonlyMap<string, number> {
    return new Map<string, number>([
      ...this.#sizes,
      ['fqdn-peers', this.#fqdnPeerTtls.size],
      ['fqdn-cache', this.#fqdnCacheTtls.size],
    ]);
  }

  onInvalidated(callback: (reason: string, isExternal: boolean) => void): void {
    this.#onInvalidated = callback;
  }

  /**
   * Marks the content of the table as unknown, for example after an external change.
   * @param reason For the log.
   * @param isExternal Whether another program changed the table.
   */
  invalidate(reason: string, isExternal = false): void {
    if (!this.#isInSync) return;
    this.#isInSync = false;
    this.#onInvalidated(reason, isExternal);
  }

  /**
   * Applies a change in up to three transactions. Prepare adds new lists and chains that no rule
   * refers to yet. Commit switches atomically. Cleanup removes lists and chains that are no longer
   * referenced.
   * @throws PolicyRefusedError; NetlinkError if it is unknown whether a transaction was applied.
   */
  apply(change: PolicyChange): Promise<void> {
    return this.#queue.run(async () => {
      try {
        await this.#apply(change);
      } catch (error) {
        this.#isInSync = false;
        throw this.#asPolicyError(error, change.chains);
      }
    });
  }

  /**
   * Replaces the whole table. The old table may be missing, belong to an earlier agent or release,
   * or have external changes. The old content stays in force until the new content is in force,
   * even if the replacement is interrupted. The FQDN cache in the kernel is kept.
   * @param state Must not change until the promise is settled.
   * @returns the number of elements, not counting FQDN addresses.
   * @throws PolicyRefusedError, NetlinkError
   */
  replaceAll(state: PolicyState, fqdn: FqdnContent): Promise<number> {
    this.#isReplacing = true;
    // `fqdn` is a snapshot. Later FQDN additions must not join the pending batch: the batch is
    // written before the table is replaced, and the replacement would drop them.
    this.#pendingAddition = undefined;
    return this.#queue.run(async () => {
      // Each external change after this point requires another `replaceAll`.
      this.#isInSync = true;
      try {
        return await this.#replaceAll(state, fqdn);
      } catch (error) {
        this.#isInSync = false;
        throw this.#asPolicyError(error, state.chains);
      } finally {
        this.#isReplacing = false;
        this.#hasTried = true;
      }
    });
  }

  /**
   * Adds resolved addresses to the peer sets with a timeout, and stores the entries of the FQDN
   * cache. The timeout of an existing element is extended, never shortened. Does nothing before
   * `replaceAll` has succeeded, because `replaceAll` writes the whole cache. A failure invalidates
   * the table.
   * @returns when packets to the addresses may pass. During `replaceAll` the promise resolves at
   * once, even if the addition fails later.
   * @throws PolicyRefusedError, NetlinkError
   */
  async addFqdnAddresses(
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[],
  ): Promise<void> {
    // Do not wait for the queue if all addresses of the DNS answer belong to the other IP family.
    if (elements.length + entries.length === 0) return;
    const done = this.#enqueueAddition(elements, entries);
    if (!this.#isReplacing) return await done;
    // Do not wait: when a table is deleted the kernel drops queued packets (nf_queue_nf_hook_drop),
    // including the DNS answers whose verdict waits for this call.
    done.catch(() => undefined);
  }

  #enqueueAddition(elements: readonly FqdnElement[], entries: readonly FqdnEntry[]): Promise<void> {
    const batch = this.#pendingAddition;
    if (batch !== undefined) {
      batch.elements.push(...elements);
      batch.entries.push(...entries);
      return batch.done;
    }
    const done = this.#queue.run(async () => {
      this.#pendingAddition = undefined;
      await this.#addNow(pending);
    });
    const pending: PendingAddition = { elements: [...elements], entries: [...entries], done };
    this.#pendingAddition = pending;
    return done;
  }

  /**
   * Removes addresses from the peer sets and entries from the FQDN cache before they expire.
   * Ignores `timeoutMs` of the arguments. Later calls of `addFqdnAddresses` take effect after the
   * removal. Does nothing before `replaceAll` has succeeded.
   * @throws PolicyRefusedError, NetlinkError
   */
  removeFqdnAddresses(
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[],
  ): Promise<void> {
    this.#pendingAddition = undefined;
    return this.#queue.run(() => this.#removeNow({ elements, entries }));
  }

  /**
   * Queues the DNS packets of the given resolvers, and of no others, for `RESOLVER_TTL`. Runs beside other calls, which may
   * take longer. The table in force gets the resolvers even if its content is unknown, like the table of an earlier agent.
   * Otherwise learning would stop during a replacement, or while writes fail.
   * @throws NftRefusedError if the kernel has no NFQUEUE, or no table exists although it is not being replaced;
   * NftRefusedError, NetlinkError
   */
  async queueDns(resolvers: readonly string[]): Promise<void> {
    const operations = this.#resolvers.renew(resolvers);
    if (this.#queueError !== undefined && resolvers.length > 0) throw this.#queueError;
    const mayBeMissing = this.#isReplacing || !this.#hasTried;
    const { main, staging } = this.#tables;
    // Without a known state, either table may be in force, and a rebuild may switch at any time.
    const tables = this.#isInSync && !this.#isReplacing ? [main] : [main, staging];
    const missing = (await Promise.all(tables.map((each) => renewIn(each, operations)))).filter(
      (error) => error !== undefined,
    );
    const isWritten = missing.length < tables.length;
    if (isWritten || mayBeMissing || this.#isReplacing || resolvers.length === 0) return;
    throw missing[0];
  }

  /**
   * Number of DNS answers that arrived on another interface than the way back to the resolver; 0 without a table.
   * @throws NetlinkError
   */
  async forgedAnswers(): Promise<number> {
    if (this.#isReplacing) return this.#forgedAnswers;
    return await this.#queue.run(async () => {
      const counters = (await this.#tables.main.counters()) ?? [];
      const counter = counters.find(({ name }) => name === FORGED_ANSWERS_COUNTER);
      this.#forgedAnswers = Number(counter?.packets ?? 0);
      return this.#forgedAnswers;
    });
  }

  /**
   * The FQDN cache in the kernel with remaining timeouts; empty without a table.
   * @throws NetlinkError
   */
  fqdnEntries(): Promise<FqdnEntry[]> {
    return this.#queue.run(() => this.#readFqdnCache());
  }

  /**
   * Counters of denied packets; zeros without a table. During `replaceAll` returns the last result,
   * or an empty list before the first result: zeros would look like a counter reset.
   * @throws NetlinkError
   */
  async deniedPackets(): Promise<readonly DeniedPackets[]> {
    if (this.#isReplacing) return this.#denied;
    return await this.#queue.run(async () => {
      this.#denied = deniedCounts((await this.#tables.main.counters()) ?? []);
      return this.#denied;
    });
  }

  async #apply(change: PolicyChange): Promise<void> {
    const { prepare, remove, add, chains, cleanup, cleanupChains } = change;
    const parts = chains.flatMap((chain) => kernelChains(chain, this.family));
    // Create new chains in an earlier transaction. A packet in flight evaluates a chain with its
    // pre-commit rules, so a chain created in the same commit would look empty and allow it.
    const created = parts.filter(({ name }) => !this.#chains.has(name));
    const changed = parts.filter(({ name }) => this.#chains.has(name));
    const stale = staleChains(chains, cleanupChains, this.#chains, this.family);

    await this.#tables.main.transact([
      ...setOperations('add', prepare),
      ...created.map(replaceChainRules),
    ]);
    for (const { name } of created) this.#chains.add(name);
    this.#count(prepare, 1);
    await this.#tables.main.transact([
      ...setOperations('delete', remove),
      ...setOperations('add', add),
      ...changed.map(replaceChainRules),
    ]);
    this.#count(remove, -1);
    this.#count(add, 1);
    await this.#tables.main.transact([
      ...setOperations('delete', cleanup),
      { action: 'remove', chains: stale },
    ]);
    for (const name of stale) this.#chains.delete(name);
    this.#count(cleanup, -1);
  }

  async #replaceAll({ chains, elements }: PolicyState, fqdn: FqdnContent): Promise<number> {
    const slice = new TimeSlice();
    const bySet = new Map<NftSetName, NftElement[]>(
      NFT_SET_NAMES.filter((set) => !isAnswerSet(set) && set !== 'dns-resolvers').map((set) => [
        set,
        [],
      ]),
    );
    for (const source of elements) {
      const { set, element } = setElement(source);
      bySet.get(set)?.push(element);
      if (slice.isOver()) await slice.yield();
    }
    const sizes = new Map([...bySet].map(([set, { length }]) => [set, length]));
    const now = this.#now();
    const stored = await this.#readFqdnCache();
    this.#fqdnCacheTtls.clear();
    this.#fqdnPeerTtls.clear();
    const cache = this.#fqdnCacheTtls.missing(fqdnCacheElements([...stored, ...fqdn.entries]), now);
    const peers = this.#fqdnPeerTtls.missing(fqdnPeerElements(fqdn.elements), now);
    bySet.set('fqdn-cache', cache).set('fqdn-peers', peers);
    for (const [set, answers] of await readAnswers(await activeTable(this.#tables)))
      bySet.set(set, answers);
    const resolvers = () => this.#resolvers.elements();
    await this.#rebuild({ chains, elements: bySet, resolvers });
    const parts = chains.flatMap((chain) => kernelChains(chain, this.family));
    this.#chains = new Set(parts.map(({ name }) => name));
    this.#fqdnPeerTtls.recordWritten(peers, now);
    this.#fqdnCacheTtls.recordWritten(cache, now);
    this.#sizes = sizes;
    this.#hasWritten = true;
    return [...sizes.values()].reduce((sum, size) => sum + size, 0);
  }

  /**
   * Rebuilds the table. If the kernel refuses a log rule or the queue rule, for example because it lacks nfnetlink_log or
   * NFQUEUE, writes the table without: enforcing matters more.
   */
  async #rebuild(content: TableContent): Promise<void> {
    let options: PolicyTableOptions = this.#options;
    this.#queueError = undefined;
    for (;;) {
      try {
        return await rebuild(this.#tables, options, content);
      } catch (error) {
        if (!(error instanceof NftRefusedError) || error.rule === undefined) throw error;
        const { logGroup } = options;
        const isDenyChain = DENY_VERDICTS.some((denial) => error.chain?.startsWith(denial));
        if (isDenyChain && logGroup !== undefined) {
          this.#options.onWarning('cannot log denied packets', { logGroup, err: error });
          options = { ...options, logGroup: undefined };
        } else if (error.chain === DNS_QUEUE_CHAIN && options.hasQueue !== false) {
          this.#queueError = error;
          options = { ...options, hasQueue: false };
        } else throw error;
      }
    }
  }

  async #addNow({ elements, entries }: FqdnContent): Promise<void> {
    if (!this.#hasWritten) return;
    for (let attempt = 1; ; attempt++) {
      const now = this.#now();
      const peers = this.#fqdnPeerTtls.missing(fqdnPeerElements(elements), now);
      const cache = this.#fqdnCacheTtls.missing(fqdnCacheElements(entries), now);
      try {
        await this.#tables.main.transact([
          ...this.#fqdnPeerTtls.refresh(peers),
          ...this.#fqdnCacheTtls.refresh(cache),
        ]);
        this.#fqdnPeerTtls.recordWritten(peers, now);
        this.#fqdnCacheTtls.recordWritten(cache, now);
        return;
      } catch (error) {
        const hasExpired = error instanceof NftRefusedError && error.action === 'delete';
        if (!hasExpired || attempt === ADD_ATTEMPTS) {
          this.invalidate(`cannot add FQDN addresses: ${String(error)}`);
          throw this.#asPolicyError(error, []);
        }
      }
    }
  }

  async #removeNow({ elements, entries }: FqdnContent): Promise<void> {
    if (!this.#hasWritten) return;
    const peers = fqdnPeerElements(elements);
    const cache = fqdnCacheElements(entries);
    try {
      await this.#tables.main.transact([
        ...this.#fqdnPeerTtls.remove(peers),
        ...this.#fqdnCacheTtls.remove(cache),
      ]);
    } catch (error) {
      throw this.#asPolicyError(error, []);
    }
    this.#fqdnPeerTtls.recordRemoved(peers);
    this.#fqdnCacheTtls.recordRemoved(cache);
  }

  async #readFqdnCache(): Promise<FqdnEntry[]> {
    const table = await activeTable(this.#tables);
    for (const set of ['fqdn-cache', LEGACY_NAMES.fqdnCache]) {
      const entries = await this.#readFqdnEntries(table, set);
      if (entries !== undefined) return entries;
    }
    return [];
  }

  /** @returns undefined if the table or the set does not exist. */
  async #readFqdnEntries(table: RuleTable, set: string): Promise<FqdnEntry[] | undefined> {
    const format = addressFormatter();
    let entries: FqdnEntry[] = [];
    try {
      await table.visitElements(
        set,
        (element) => {
          const entry = readFqdnEntry(element, this.family, format);
          if (entry !== undefined) entries.push(entry);
        },
        () => {
          entries = [];
        },
      );
    } catch (error) {
      if (hasErrno(error, ENOENT)) return undefined;
      throw error;
    }
    return entries;
  }

  #count(elements: readonly PolicyElement[], change: 1 | -1): void {
    for (const { set } of elements) this.#sizes.set(set, (this.#sizes.get(set) ?? 0) + change);
  }

  #asPolicyError(error: unknown, chains: readonly PolicySetChain[]): unknown {
    if (!(error instanceof NftRefusedError)) return error;
    return new PolicyRefusedError(this.family, error, chains);
  }
}

/**
 * @returns the error if the table does not exist, or has no such set because an earlier version wrote it.
 * @throws NftRefusedError, NetlinkError
 */
async function renewIn(
  table: RuleTable,
  operations: readonly NftOperation[],
): Promise<NftRefusedError | undefined> {
  try {
    await table.transact(operations);
  } catch (error) {
    if (!(error instanceof NftRefusedError)) throw error;
    // An element that expires between its add and its delete is added by the next call.
    if (error.action === 'delete') return undefined;
    if (error.errno !== ENOENT) throw error;
    return error;
  }
  return undefined;
}

function deniedCounts(counters: readonly NftCounter[]): DeniedPackets[] {
  const packets = new Map(counters.map((each) => [each.name, Number(each.packets)]));
  return DENY_VERDICTS.flatMap((denial) =>
    DIRECTIONS.map((direction) => ({
      denial,
      direction,
      packets: packets.get(denyChain(denial, direction)) ?? 0,
    })),
  );
}

/** One operation for each set. */
function setOperations(
  action: 'add' | 'delete',
  elements: readonly PolicyElement[],
): NftOperation[] {
  const bySet = Map.groupBy(elements.map(setElement), ({ set }) => set);
  return [...bySet].map(([set, all]) => ({
    action,
    set,
    elements: all.map(({ element }) => element),
  }));
}

/** Names of stale chains: chains of removed policy sets, and unneeded chains of lower tiers. */
function staleChains(
  chains: readonly PolicySetChain[],
  removed: PolicyChange['cleanupChains'],
  existing: ReadonlySet<string>,
  family: IpFamily,
): string[] {
  const desired = new Set(
    chains.flatMap((chain) => kernelChains(chain, family)).map(({ name }) => name),
  );
  return [...chains, ...removed]
    .flatMap(({ direction, policySetId }) => kernelChainNames(direction, policySetId))
    .filter((name) => existing.has(name) && !desired.has(name));
}

function fqdnPeerElements(elements: readonly FqdnElement[]): KernelElement[] {
  return elements.map((source) => setElement(source).element);
}

function fqdnCacheElements(entries: readonly FqdnEntry[]): KernelElement[] {
  return entries.flatMap((entry) => fqdnEntryElement(entry)?.element ?? []);
}
