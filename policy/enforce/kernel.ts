/**
 * Network policy in the kernel, for all IP families. Used by the enforcer and by the DNS snooper.
 */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { FqdnElement, FqdnEntry } from '../compile/change.ts';
import { type DeniedPackets, PolicyBackend } from './backend.ts';
import { openPolicyTables, type PolicyTables } from './rebuild.ts';

export interface PolicyKernelOptions {
  readonly families: readonly IpFamily[];
  /** See `PolicyTableOptions`. */
  readonly logGroup?: number | undefined;
  /** An optional feature does not work on this node; policies are enforced without it. */
  readonly onWarning: (
    family: IpFamily,
    message: string,
    details: Readonly<Record<string, unknown>>,
  ) => void;
  /** Opens the tables of a family. Default: `openPolicyTables`. */
  readonly open?: (family: IpFamily) => PolicyTables;
}

/** The tables and the backend of one IP family. */
export interface FamilyKernel {
  readonly tables: PolicyTables;
  readonly backend: PolicyBackend;
}

export class PolicyKernel {
  readonly families: ReadonlyMap<IpFamily, FamilyKernel>;

  /** @throws NetlinkError */
  constructor({ families, logGroup, onWarning, open = openPolicyTables }: PolicyKernelOptions) {
    const kernelOf = (family: IpFamily): FamilyKernel => {
      const tables = open(family);
      const backend = new PolicyBackend(tables, {
        family,
        logGroup,
        onWarning: (message, details) => onWarning(family, message, details),
      });
      return { tables, backend };
    };
    this.families = new Map(families.map((family) => [family, kernelOf(family)]));
  }

  /**
   * Calls `PolicyBackend.addFqdnAddresses` in the families of the addresses.
   * @throws PolicyRefusedError, NetlinkError
   */
  addFqdnAddresses(elements: readonly FqdnElement[], entries: readonly FqdnEntry[]): Promise<void> {
    return this.#inFamilies('addFqdnAddresses', elements, entries);
  }

  /** Resolves when the addresses are removed. @throws PolicyRefusedError, NetlinkError */
  removeFqdnAddresses(
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[],
  ): Promise<void> {
    return this.#inFamilies('removeFqdnAddresses', elements, entries);
  }

  /**
   * The FQDN cache that the kernel stores, including the entries of an earlier agent.
   * @throws NetlinkError
   */
  async fqdnEntries(): Promise<FqdnEntry[]> {
    const all = [...this.families.values()].map(({ backend }) => backend.fqdnEntries());
    return (await Promise.all(all)).flat();
  }

  /** Calls `PolicyBackend.queueDns` in every family. @throws NftRefusedError, NetlinkError */
  async queueDns(resolvers: readonly string[]): Promise<void> {
    const all = [...this.families].map(([family, { backend }]) =>
      backend.queueDns(resolvers.filter((resolver) => familyOf(resolver) === family)),
    );
    await Promise.all(all);
  }

  /**
   * Number of DNS answers that arrived on another interface than the way back to the resolver.
   * @throws NetlinkError
   */
  async forgedAnswers(): Promise<number> {
    const all = [...this.families.values()].map(({ backend }) => backend.forgedAnswers());
    return (await Promise.all(all)).reduce((sum, count) => sum + count, 0);
  }

  /** Counters of denied packets by IP family. @throws NetlinkError */
  async deniedPackets(): Promise<ReadonlyMap<IpFamily, readonly DeniedPackets[]>> {
    const counts = [...this.families].map(
      async ([family, { backend }]) => [family, await backend.deniedPackets()] as const,
    );
    return new Map(await Promise.all(counts));
  }

  /** Number of elements in the kernel, by nft set. */
  setSizes(family: IpFamily): ReadonlyMap<string, number> {
    return this.families.get(family)?.backend.setSizes() ?? new Map();
  }

  /** Closes the sockets. The kernel keeps enforcing the policy tables. */
  async close(): Promise<void> {
    for (const { tables } of this.families.values()) {
      await Promise.all(Object.values(tables).map((table) => table.close()));
    }
  }

  async #inFamilies(
    method: 'addFqdnAddresses' | 'removeFqdnAddresses',
    elements: readonly FqdnElement[],
    entries: readonly FqdnEntry[],
  ): Promise<void> {
    const all = [...this.families].map(([family, { backend }]) => {
      const isOf = ({ address }: { readonly address: string }) => familyOf(address) === family;
      return backend[method](elements.filter(isOf), entries.filter(isOf));
    });
    await Promise.all(all);
  }
}
