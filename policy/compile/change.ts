/**
 * The changes that compile/ passes to enforce/: changes of the policy table of one IP family. The
 * table has a fixed list of nft sets, and one or two chains for each policy set (`chains.ts`). A
 * chain contains the rules of its policies in order of evaluation; the first match decides.
 *
 * For the first packet of a connection, a base chain looks up the source pod in `egress-pods` and
 * the destination pod in `ingress-pods`. Each map jumps to the chain of the pod's policy set;
 * allowed packets return. Rules refer to peers and ports by list ids. The members of all lists are
 * elements of shared nft sets. So a pod that is added, removed or relabelled changes elements.
 * Chains change only if a policy set becomes used or unused on the node.
 *
 * The metric `portwide_policy_sets` counts policy sets.
 */
import type { IpFamily } from '../../api/objects.ts';
import type { Direction, ListId, PeerSetName, PortSetName, RuleVerdict } from '../model/terms.ts';

export interface CompiledPeers {
  readonly id: ListId;
  readonly sets: readonly PeerSetName[];
  /** The id in the set `networks`; undefined: the same id. See `AppliedState.#renumber`. */
  readonly networksId?: ListId | undefined;
}

/** The id of a peer list in one of its sets. */
export function idIn(set: PeerSetName, { id, networksId = id }: CompiledPeers): ListId {
  return set === 'networks' ? networksId : id;
}

/** The part of a rule (`model/rules.ts`) that the kernel needs. */
export interface CompiledRule {
  /**
   * undefined: all peers. Otherwise the members of the list in any of the sets; without sets, no
   * peer matches.
   */
  readonly peers: CompiledPeers | undefined;
  /** undefined: all ports of all protocols. Otherwise the members of the list in either set. */
  readonly ports: { readonly id: ListId; readonly sets: readonly PortSetName[] } | undefined;
  readonly verdict: RuleVerdict;
  /** Shown by `nft list chain`, for example `NetworkPolicy default/web spec.egress[0]`. */
  readonly comment: string;
}

/** The compiled rules of one policy set. */
export interface PolicySetChain {
  readonly direction: Direction;
  readonly policySetId: number;
  /**
   * Rules of the Admin tier. A packet that a rule passes, or that no rule matches, continues with
   * `lowerTiers`.
   */
  readonly admin: readonly CompiledRule[];
  /**
   * Rules of NetworkPolicies and their default deny, or of the Baseline tier if no NetworkPolicy
   * isolates the pod. A packet that no rule matches is allowed.
   */
  readonly lowerTiers: readonly CompiledRule[];
}

/** An element of an nft set. Addresses are canonical text of the IP family of the change. */
export type PolicyElement =
  /** The policy set that is evaluated for the connections of a pod. */
  | { readonly set: `${Direction}-pods`; readonly address: string; readonly policySetId: number }
  /** A pod of this node. Its hairpin traffic (to itself, through a Service) is always allowed. */
  | { readonly set: 'hairpin-pods'; readonly address: string }
  /** A pod of this node that a policy selects: answers to its untracked packets are recorded. */
  | { readonly set: 'selected-pods'; readonly address: string }
  /** A pod of this node that no policy with domain names selects: its DNS packets are not queued. */
  | { readonly set: 'dns-bypass'; readonly address: string }
  /** A VIP of a Service with ports owned by pods. */
  | { readonly set: 'owned-vips'; readonly address: string }
  | { readonly set: 'peers'; readonly list: ListId; readonly address: string }
  /** Both ends are included. Ranges of one list do not overlap. */
  | {
      readonly set: 'networks';
      readonly list: ListId;
      readonly first: string;
      readonly last: string;
    }
  /**
   * Both ends are included. Ranges of one list and protocol do not overlap and are not adjacent.
   */
  | {
      readonly set: 'ports';
      readonly list: ListId;
      /** IP protocol number. */
      readonly protocol: number;
      readonly first: number;
      readonly last: number;
    }
  /** The destination pod and the number of its named port. */
  | {
      readonly set: 'named-ports';
      readonly list: ListId;
      readonly address: string;
      readonly protocol: number;
      readonly port: number;
    };

/** An address that a domain name of a peer list was resolved to. */
export interface FqdnElement {
  readonly set: 'fqdn-peers';
  readonly list: ListId;
  readonly address: string;
  readonly timeoutMs: number;
}

/**
 * An entry of the FQDN cache. The policy table stores a copy, so that the cache survives agent
 * restarts.
 */
export interface FqdnEntry {
  /** Lower-case, without the final dot. */
  readonly name: string;
  readonly address: string;
  readonly timeoutMs: number;
}

/** Entries of the FQDN cache, and the peer set elements for these entries. */
export interface FqdnContent {
  readonly elements: readonly FqdnElement[];
  readonly entries: readonly FqdnEntry[];
}

/**
 * A change of one IP family in three phases: prepare (new lists), commit (atomic), cleanup
 * (unreferenced lists and chains). With this order, no packet matches against an incomplete list.
 */
export interface PolicyChange {
  readonly family: IpFamily;
  /** Elements of lists that no rule refers to yet. */
  readonly prepare: readonly PolicyElement[];
  /** Elements to remove and to add in the commit. A pod with a changed policy set is in both. */
  readonly remove: readonly PolicyElement[];
  readonly add: readonly PolicyElement[];
  /** Policy sets that are new or have changed rules. */
  readonly chains: readonly PolicySetChain[];
  /** Elements of lists, and chains, that are no longer referenced. */
  readonly cleanup: readonly PolicyElement[];
  readonly cleanupChains: readonly {
    readonly direction: Direction;
    readonly policySetId: number;
  }[];
}

/** The complete desired state of one IP family. */
export interface PolicyState {
  readonly chains: readonly PolicySetChain[];
  /** Generated lazily: there may be 100,000 elements. */
  readonly elements: Iterable<PolicyElement>;
}
