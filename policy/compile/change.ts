/**
 * What compile/ hands to enforce/: one table a family with a constant set of sets, and one chain for each
 * policy set. A chain has the rules of its policies in the order of their priority: the first match decides.
 * Chains and elements call the number of a policy set `profile`, as metrics do.
 *
 * For a packet that begins a connection, a base chain looks up the pod that sends it in `egress-pods`
 * and the pod that gets it in `ingress-pods`, and jumps to the chain of its policy set; what a chain
 * allows returns. Peers and ports are numbers in the rules, and members of shared sets under these
 * numbers: a pod that comes, goes or is relabelled is some elements, and no rule.
 */
import type { IpFamily } from '../../api/objects.ts';
import type { Direction, ListId, PeerSetName, PortSetName, RuleVerdict } from '../model/terms.ts';

/** What the kernel is told of a rule (`model/rules.ts`). */
export interface CompiledRule {
  /** undefined: whoever. Otherwise a peer is one of the list in any of the sets; no sets: nobody. */
  readonly peers: { readonly number: ListId; readonly sets: readonly PeerSetName[] } | undefined;
  /** undefined: all ports of all protocols. Otherwise a port in either of the sets. */
  readonly ports: { readonly number: ListId; readonly sets: readonly PortSetName[] } | undefined;
  readonly outcome: RuleVerdict;
  /** `NetworkPolicy default/web spec.egress[0]`, for whoever lists the chain. */
  readonly comment: string;
}

/** The rules of one policy set. */
export interface PolicySetChain {
  readonly direction: Direction;
  readonly profile: number;
  /** The Admin tier; empty where none applies. What nothing matches goes on. */
  readonly admin: readonly CompiledRule[];
  /** NetworkPolicies or, where none isolates, the Baseline tier. What nothing matches is allowed. */
  readonly lowerTiers: readonly CompiledRule[];
}

/** Addresses are canonical text of the family that they are handed over for. */
export type PolicyElement =
  /** The pod's connections are judged by the chain of the policy set. */
  | { readonly set: `${Direction}-pods`; readonly address: string; readonly profile: number }
  /** A pod of this node, which may talk to itself (through a Service that leads back to it). */
  | { readonly set: 'own'; readonly address: string }
  | { readonly set: 'peers'; readonly list: ListId; readonly address: string }
  /** Ranges of one list do not overlap. */
  | {
      readonly set: 'networks';
      readonly list: ListId;
      readonly first: string;
      readonly last: string;
    }
  /** Of one list and protocol they do not overlap or touch. */
  | {
      readonly set: 'ports';
      readonly list: ListId;
      /** As IP numbers it. */
      readonly protocol: number;
      readonly first: number;
      readonly last: number;
    }
  /** The destination, and the port that it gives the name. */
  | {
      readonly set: 'named-ports';
      readonly list: ListId;
      readonly address: string;
      readonly protocol: number;
      readonly port: number;
    };

/** An address that a domain name of a list has, for as long as the answer lives. */
export interface FqdnElement {
  readonly set: 'learned';
  readonly list: ListId;
  readonly address: string;
  readonly timeoutMs: number;
}

/** An entry of the FQDN cache, as it is kept in the kernel over a restart of the agent. */
export interface FqdnEntry {
  /** Lower-case, without the final dot. */
  readonly name: string;
  readonly address: string;
  readonly timeoutMs: number;
}

/** Entries of the FQDN cache, and what follows from them for lists. */
export interface FqdnContent {
  readonly elements: readonly FqdnElement[];
  readonly answers: readonly FqdnEntry[];
}

/**
 * What one family has to do to come from one state to the next. In this order, so that no packet
 * meets a rule whose lists are not complete: the elements of lists that are new; then, at once,
 * everything else; then what nothing names any more.
 */
export interface PolicyChange {
  readonly family: IpFamily;
  /** Elements of lists that no rule names yet. */
  readonly prepare: readonly PolicyElement[];
  /** Elements that go from, and come to, what is in force. One with another policy set is in both. */
  readonly remove: readonly PolicyElement[];
  readonly add: readonly PolicyElement[];
  /** Chains that are new, or have other rules than before. */
  readonly chains: readonly PolicySetChain[];
  /** Elements of lists, and chains, that nothing names any more. */
  readonly cleanup: readonly PolicyElement[];
  readonly cleanupChains: readonly { readonly direction: Direction; readonly profile: number }[];
}

/** What one family has in force, for whoever compares it with the kernel. */
export interface PolicyState {
  readonly chains: readonly PolicySetChain[];
  /** Made as they are asked for: there may be 100,000. */
  readonly elements: Iterable<PolicyElement>;
}
