/** Network policy in the kernel, of all families. The enforcer and FQDN learning both write to it. */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { NftCommand } from '../../nft/command.ts';
import type { FqdnElement, FqdnEntry } from '../compile/change.ts';
import { type DeniedPackets, PolicyBackend } from './backend.ts';
import { openPolicyTables, type PolicyTables } from './rebuild.ts';

export interface PolicyKernelOptions {
  readonly families: readonly IpFamily[];
  readonly nft: NftCommand;
  /** See `SkeletonOptions`. */
  readonly logGroup?: number | undefined;
  /** Something cannot be done, and the rest is. */
  readonly onWarning: (family: IpFamily, message: string) => void;
  /** Default: of the kernel. */
  readonly open?: (family: IpFamily) => PolicyTables;
}

/** One family. */
export interface FamilyKernel {
  readonly tables: PolicyTables;
  readonly backend: PolicyBackend;
}

export class PolicyKernel {
  readonly families: ReadonlyMap<IpFamily, FamilyKernel>;

  /** @throws NetlinkError */
  constructor({
    families,
    nft,
    logGroup,
    onWarning,
    open = openPolicyTables,
  }: PolicyKernelOptions) {
    const kernelOf = (family: IpFamily): FamilyKernel => {
      const tables = open(family);
      const warn = (message: string) => onWarning(family, message);
      return {
        tables,
        backend: new PolicyBackend(tables, nft, { family, logGroup, onWarning: warn }),
      };
    };
    this.families = new Map(families.map((family) => [family, kernelOf(family)]));
  }

  /** Resolves when packets may go there. @throws as `PolicyBackend.learn` */
  learn(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void> {
    return this.#inFamilies('learn', elements, answers);
  }

  /** Resolves when packets may go there no longer. @throws as `PolicyBackend.forget` */
  forget(elements: readonly FqdnElement[], answers: readonly FqdnEntry[]): Promise<void> {
    return this.#inFamilies('forget', elements, answers);
  }

  /** What is kept of answers, an earlier agent's included. @throws NetlinkError */
  async fqdnEntries(): Promise<FqdnEntry[]> {
    const all = [...this.families.values()].map(({ backend }) => backend.fqdnEntries());
    return (await Promise.all(all)).flat();
  }

  /** By family. @throws NetlinkError */
  async deniedPackets(): Promise<ReadonlyMap<IpFamily, readonly DeniedPackets[]>> {
    const counts = [...this.families].map(
      async ([family, { backend }]) => [family, await backend.deniedPackets()] as const,
    );
    return new Map(await Promise.all(counts));
  }

  /** Elements in the kernel, by set. */
  setSizes(family: IpFamily): ReadonlyMap<string, number> {
    return this.families.get(family)?.backend.setSizes() ?? new Map();
  }

  /** What was enforced is. */
  async close(): Promise<void> {
    for (const { tables } of this.families.values()) {
      await Promise.all([tables.main.close(), tables.guard.close()]);
    }
  }

  async #inFamilies(
    what: 'learn' | 'forget',
    elements: readonly FqdnElement[],
    answers: readonly FqdnEntry[],
  ): Promise<void> {
    const all = [...this.families].map(([family, { backend }]) => {
      const isOf = ({ address }: { readonly address: string }) => familyOf(address) === family;
      return backend[what](elements.filter(isOf), answers.filter(isOf));
    });
    await Promise.all(all);
  }
}
