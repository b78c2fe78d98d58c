/** `GET /api/v1/status`: the state of the agent and of its node. */
import type { IpFamily } from '../../api/objects.ts';
import type { Problem, Time } from './common.ts';
import type { PolicyStatus } from './policies.ts';

export interface NodeStatus {
  readonly version: string;
  readonly nodeName: string;
  readonly zone: string | null;
  readonly startedAt: Time;
  /** Path of the agent's Unix socket; null if it has none (`--status-socket=none`). */
  readonly statusSocket: string | null;
  /** Time of this answer, to compute ages with the agent's clock. */
  readonly now: Time;
  readonly mode: {
    readonly name: 'iptables' | 'ipvs' | 'nftables';
    /** Why this mode is in use, such as `--proxy-mode`. */
    readonly reason: string;
  };
  /** `starting` until every family has synced; `degraded` if there is a problem. */
  readonly state: 'starting' | 'healthy' | 'degraded';
  /** Why the state is `degraded`. */
  readonly problems: readonly Problem[];
  /** What the agent waits for at its start; empty afterwards. */
  readonly waitingFor: readonly string[];
  readonly families: readonly FamilyStatus[];
  readonly source: SourceStatus;
  readonly kernel: KernelStatus;
  readonly services: ServiceCounts;
  /** Why Services or some of their VIPs are refused; at most 50. */
  readonly refusals: readonly RefusalStatus[];
  /** null without `--network-policy`. */
  readonly policy: PolicyStatus | null;
}

/** Sync state of one IP family. */
export interface FamilyStatus {
  readonly family: IpFamily;
  /** End of the last successful sync; null before the first. */
  readonly lastSync: Time | null;
  readonly lastSyncSeconds: number | null;
  readonly lastFullSync: Time | null;
  readonly lastFullSyncSeconds: number | null;
  /** Chains, elements or messages that the last sync wrote. */
  readonly lastWritten: number | null;
  /** Since when a change waits for a sync; null if none waits. */
  readonly waitingSince: Time | null;
  /** The last failure; null if the last sync succeeded. */
  readonly failure: { readonly at: Time; readonly message: string; readonly count: number } | null;
  /** The last change by another program; null if there was none. */
  readonly lastDrift: { readonly at: Time; readonly change: string; readonly count: number } | null;
  /** Whether the kernel reports external changes immediately. Otherwise they are found by a periodic check. */
  readonly watchesChanges: boolean;
}

/** Where the agent reads Kubernetes objects. */
export interface SourceStatus {
  readonly kind: 'API server' | 'manifests';
  /** URL of the API server, or the directory. */
  readonly location: string;
  /** Whether the source has the Node object of this node. */
  readonly hasNode: boolean;
  readonly kinds: readonly {
    readonly kind: string;
    /** Whether the first list is complete. */
    readonly synced: boolean;
    /** Whether a watch is open; null for manifests. */
    readonly watching: boolean | null;
  }[];
}

export interface KernelStatus {
  /** Such as `6.12.9-amd64`. */
  readonly release: string;
  readonly features: readonly KernelFeature[];
}

/** A feature of the kernel or of a program that the agent uses. */
export interface KernelFeature {
  readonly name: string;
  readonly value: string;
  /** false if the feature is missing or limits what the agent can do. */
  readonly ok: boolean;
  /** What follows for the operator; empty if nothing does. */
  readonly note: string;
}

export interface ServiceCounts {
  /** Services that the agent knows: the sum of the numbers for each `ServiceState`. */
  readonly total: number;
  readonly served: number;
  readonly partial: number;
  readonly noEndpoints: number;
  readonly partlyRefused: number;
  readonly refused: number;
  readonly ignored: number;
  readonly allPorts: number;
  readonly portRanges: number;
  /** Changes of Services and EndpointSlices that are not in the kernel yet. */
  readonly pendingChanges: number;
  readonly routes: number;
}

export interface RefusalStatus {
  /** `namespace/name` */
  readonly service: string;
  readonly reason: string;
  readonly field: string;
  readonly message: string;
}
