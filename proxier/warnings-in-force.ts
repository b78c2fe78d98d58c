/** The warnings of each Service, so that each warning is reported once. */
import { isDeepStrictEqual } from 'node:util';
import { setList } from '../api/collections.ts';
import type { EndpointSlice, ObjectKey, Service } from '../api/objects.ts';
import { candidatesForAllPorts } from '../endpoints/select.ts';
import { ownersOf, type RouteContext } from '../services/resolve-route.ts';
import type { Route } from '../services/route.ts';
import type { ServedService } from '../services/served-ports.ts';
import {
  contestWarnings,
  listenerWarnings,
  mismatchWarnings,
  type NodeListener,
  nodeEndpointWarnings,
  ownershipWarnings,
  type ServiceWarning,
  speakerWarnings,
} from '../services/service-warnings.ts';
import type { ContestedVip } from './contested-vips.ts';

export interface WarningOptions {
  /** See `mismatchWarnings`; false by default. */
  readonly warnsOfMismatches?: boolean;
  /** Listeners of this node, such as ssh. A Service that takes over a listener's port gets a warning. None by default. */
  readonly listeners?: readonly NodeListener[];
  /** Whether node ports are served on the loopback address; false by default. */
  readonly isLoopbackServed?: boolean;
}

/** What the warnings of a Service depend on. */
interface WarningInputs {
  /** undefined if there is no such Service, although slices name it. */
  readonly state: { readonly service: Service; readonly served: ServedService } | undefined;
  readonly slices: readonly EndpointSlice[];
  readonly routes: readonly Route[];
  readonly contestedVips: readonly ContestedVip[];
  /** See `speakerWarnings`. */
  readonly otherSpeakers: ReadonlyMap<ObjectKey, string>;
  readonly node: Pick<RouteContext, 'node' | 'nodeAddresses'>;
}

export class WarningsInForce {
  readonly #options: WarningOptions;
  readonly #warnings = new Map<ObjectKey, readonly ServiceWarning[]>();
  /** Services that hide a listener of the node. */
  readonly #onListenerPorts = new Set<ObjectKey>();

  constructor(options: WarningOptions) {
    this.#options = options;
  }

  /** The warnings of a Service. */
  of(service: ObjectKey): readonly ServiceWarning[] {
    return this.#warnings.get(service) ?? [];
  }

  /** Number of Services that hide a listener of the node. */
  get servicesOnListenerPorts(): number {
    return this.#onListenerPorts.size;
  }

  /** Computes the warnings of a Service. @returns warnings that were not in force before. */
  update(serviceKey: ObjectKey, inputs: WarningInputs): ServiceWarning[] {
    const { listeners = [], isLoopbackServed = false } = this.#options;
    const { routes, node } = inputs;
    const onListeners = listenerWarnings(routes, listeners, node.nodeAddresses, isLoopbackServed);
    if (onListeners.length > 0) this.#onListenerPorts.add(serviceKey);
    else this.#onListenerPorts.delete(serviceKey);
    const known = this.of(serviceKey);
    const warnings = this.#compute(serviceKey, inputs, onListeners);
    setList(this.#warnings, serviceKey, warnings);
    return warnings.filter((warning) => !known.some((other) => isDeepStrictEqual(warning, other)));
  }

  #compute(
    serviceKey: ObjectKey,
    {
      state,
      slices,
      routes,
      contestedVips,
      otherSpeakers,
      node: { node, nodeAddresses },
    }: WarningInputs,
    onListeners: readonly ServiceWarning[],
  ): ServiceWarning[] {
    const { warnings = [], ports = [], refusals = [] } = state?.served ?? {};
    const isRefused = refusals.length > 0;
    return [
      ...warnings.map((message) => ({ serviceKey, message })),
      ...(this.#options.warnsOfMismatches && !isRefused
        ? mismatchWarnings(serviceKey, state?.service, slices, ports)
        : []),
      ...onListeners,
      ...nodeEndpointWarnings(routes, nodeAddresses),
      ...contestWarnings(serviceKey, contestedVips),
      ...speakerWarnings(serviceKey, otherSpeakers),
      ...withoutRepeats(
        ports.flatMap((port) => {
          if (port.ownership === undefined) return [];
          const candidates = () => candidatesForAllPorts(slices, port.family);
          const { others } = ownersOf(port, port.ownership.ports, slices, node, nodeAddresses);
          return ownershipWarnings(serviceKey, candidates, others);
        }),
      ),
    ];
  }
}

/** Both families may give the same warning. */
function withoutRepeats(warnings: readonly ServiceWarning[]): ServiceWarning[] {
  return [...new Map(warnings.map((warning) => [warning.message, warning])).values()];
}
