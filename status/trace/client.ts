/** The source of a traced connection, as the rules of this node classify it. Pure. */
import { cidrContains, isLoopback } from '../../api/addresses.ts';
import type { IpFamily, ObjectKey } from '../../api/objects.ts';
import type { PacketClient } from '../../traffic/first-packet.ts';
import type { LocalDetector } from '../../traffic/options.ts';
import type { TraceStep } from '../api/trace.ts';

/** A source as it was asked for. `external`: some address outside the cluster. */
export type TraceSource =
  | { readonly kind: 'node' }
  | { readonly kind: 'external' }
  | { readonly kind: 'address'; readonly address: string };

/** A pod that has an address. */
export interface KnownPod {
  readonly key: ObjectKey;
  readonly nodeName: string | undefined;
}

/** What the classification depends on. */
export interface ClientContext {
  readonly family: IpFamily;
  readonly nodeName: string;
  /** Addresses of the node in this family; the first one is the source of its own connections. */
  readonly nodeAddresses: readonly string[];
  readonly detector: LocalDetector | undefined;
  /** The pod that has an address, as far as the agent knows pods. */
  readonly podAt: (address: string) => KnownPod | undefined;
  /** Whether an endpoint on this node has the address. */
  readonly isLocalEndpoint: (address: string) => boolean;
  /** The Service that has the source as VIP; undefined: none, or the source is an address of the node. */
  readonly vipOf: ObjectKey | undefined;
}

/** A classified source. */
export interface TraceClient extends PacketClient {
  readonly step: TraceStep;
  readonly uncertain: readonly string[];
  /** Whether the source is a VIP, which hardly any host sends from. */
  readonly isVip: boolean;
}

export function traceClient(source: TraceSource, context: ClientContext): TraceClient {
  if (source.kind === 'external') return externalClient();
  const address = source.kind === 'node' ? context.nodeAddresses[0] : source.address;
  if (address === undefined) return externalClient();
  const isNode = context.nodeAddresses.includes(address) || isLoopback(address);
  const pod = context.podAt(address);
  const isHere =
    !isNode && (pod?.nodeName === context.nodeName || context.isLocalEndpoint(address));
  const isPod = isDetected(context.detector, address, isHere);
  const object = pod === undefined ? null : `Pod ${pod.key}`;
  const isElsewhere = pod?.nodeName !== undefined && !isHere && !isNode;
  const detail = [
    detectorText(context.detector),
    ...(isElsewhere
      ? [
          `the pod is on node ${pod.nodeName}, which translates the pod's packets to Services itself: trace there`,
        ]
      : []),
  ];
  const uncertain =
    context.detector?.kind === 'interface' && !isNode && !isHere && pod === undefined
      ? [
          `pods are detected by interface, and no known pod of this node has ${address}: it counts as a client outside`,
        ]
      : [];
  const isVip = context.vipOf !== undefined;
  if (isVip)
    uncertain.push(
      `${address} is a VIP of Service ${context.vipOf}: only a host that has it sends from it`,
    );
  return {
    address,
    isPod,
    isNode,
    uncertain,
    isVip,
    step: {
      step: 'source',
      title: 'Source',
      decision: `${address} ${kindText(isNode, isPod, isHere, pod !== undefined)}`,
      object,
      detail,
    },
  };
}

function externalClient(): TraceClient {
  return {
    address: undefined,
    isPod: false,
    isNode: false,
    uncertain: [],
    isVip: false,
    step: {
      step: 'source',
      title: 'Source',
      decision: 'a client outside the cluster, with an unknown address',
      object: null,
      detail: [],
    },
  };
}

/** @param isKnown whether a Pod object has the address; otherwise an EndpointSlice has it. */
function kindText(isNode: boolean, isPod: boolean, isHere: boolean, isKnown: boolean): string {
  if (isNode) return 'is an address of this node';
  if (isHere) {
    const what = isKnown ? 'is a pod of this node' : 'is an endpoint on this node';
    return isPod ? what : `${what}, but is not detected as a pod`;
  }
  return isPod ? 'is detected as a pod' : 'is not a pod: it counts as a client outside';
}

function isDetected(
  detector: LocalDetector | undefined,
  address: string,
  isHere: boolean,
): boolean {
  if (detector === undefined) return false;
  return detector.kind === 'cidr' ? cidrContains(detector.cidr, address) : isHere;
}

/** How pods are detected, for people. */
export function detectorText(detector: LocalDetector | undefined): string {
  if (detector === undefined)
    return 'pods cannot be detected: no CIDR of this family (--detect-local-mode, --cluster-cidr)';
  return detector.kind === 'cidr'
    ? `pods are detected by CIDR ${detector.cidr}`
    : `pods are detected by interface ${detector.name}`;
}
