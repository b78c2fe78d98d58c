/** The warnings of each Service, so that each warning is reported once. */
import { setList } from '../api/collections.ts';
import type { EndpointSlice, IpFamily, ObjectKey, Service } from '../api/objects.ts';
import { candidatesForAllPorts } from '../endpoints/select.ts';
import { type EndpointWithoutSlice, HOLDER_REASONS } from '../endpoints/slice-owners.ts';
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
  type TakenNodePort,
  takenNodePortWarnings,
} from '../services/service-warnings.ts';
import type { Timers } from '../sync/timers.ts';
import type { ContestedVip } from './contested-vips.ts';
import { PersistentStates } from './persistent-states.ts';

export interface WarningOptions {
  /** See `mismatchWarnings`; false by default. */
  readonly warnsOfMismatches?: boolean;
  /** Listeners of this node, such as ssh. A Service that takes over a listener's port gets a warning. None by default. */
  readonly listeners?: readonly NodeListener[];
  /** Whether node ports are served on the loopback address; false by default. */
  readonly isLoopbackServed?: boolean;
  /**
   * Limit the wait for lists of Pods, and delay warnings of endpoints without a pod. Without timers, the warnings come at
   * once, as for manifests that are read as a whole.
   */
  readonly timers?: Timers;
}

/**
 * Milliseconds for which an endpoint must be without a pod before a warning. Pods and EndpointSlices arrive by different
 * watches, and the EndpointSlice controller removes an endpoint only after its pod.
 */
const NO_POD_DELAY = 10_000;

/** What the warnings of a Service depend on. */
interface WarningInputs {
  /** undefined if there is no such Service, although slices name it. */
  readonly state: { readonly service: Service; readonly served: ServedService } | undefined;
  readonly slices: readonly EndpointSlice[];
  readonly routes: readonly Route[];
  readonly contestedVips: readonly ContestedVip[];
  readonly takenNodePorts: readonly TakenNodePort[];
  /** See `speakerWarnings`. */
  readonly otherSpeakers: ReadonlyMap<ObjectKey, string>;
  readonly nodeAddresses: ReadonlySet<string>;
}

/** Endpoints of one family that own none of the ports that pods own by a Service. */
export interface EndpointsWithoutSlice {
  readonly family: IpFamily;
  readonly endpoints: readonly EndpointWithoutSlice[];
}

export class WarningsInForce {
  readonly #options: WarningOptions;
  readonly #warnings = new Map<ObjectKey, readonly ServiceWarning[]>();
  /** Services that hide a listener of the node. */
  readonly #onListenerPorts = new Set<ObjectKey>();
  readonly #withoutPod: PersistentStates;
  readonly #withoutSlice = new Map<ObjectKey, readonly EndpointsWithoutSlice[]>();

  /** @param onDue Called for a Service whose warnings must be updated, although nothing has changed. */
  constructor(options: WarningOptions, onDue: (service: ObjectKey) => void) {
    this.#options = options;
    this.#withoutPod = new PersistentStates(options.timers, NO_POD_DELAY, onDue);
  }

  /** The warnings of a Service. */
  of(service: ObjectKey): readonly ServiceWarning[] {
    return this.#warnings.get(service) ?? [];
  }

  /** Number of Services that hide a listener of the node. */
  get servicesOnListenerPorts(): number {
    return this.#onListenerPorts.size;
  }

  /** Numbers of endpoints that own no ports, although pods own the ports of their Service, by reason. */
  withoutSlice(): Map<EndpointWithoutSlice['reason'], number> {
    const counts = new Map<EndpointWithoutSlice['reason'], number>();
    for (const { endpoints } of [...this.#withoutSlice.values()].flat()) {
      for (const { reason } of endpoints) counts.set(reason, (counts.get(reason) ?? 0) + 1);
    }
    return counts;
  }

  /** Replaces the endpoints of a Service that own nothing. */
  setWithoutSlice(service: ObjectKey, withoutSlice: readonly EndpointsWithoutSlice[]): void {
    setList(this.#withoutSlice, service, withoutSlice);
  }

  /** Computes the warnings of a Service. @returns warnings that were not in force before. */
  update(serviceKey: ObjectKey, inputs: WarningInputs): ServiceWarning[] {
    const { listeners = [], isLoopbackServed = false } = this.#options;
    const { routes, nodeAddresses } = inputs;
    const onListeners = listenerWarnings(routes, listeners, nodeAddresses, isLoopbackServed);
    if (onListeners.length > 0) this.#onListenerPorts.add(serviceKey);
    else this.#onListenerPorts.delete(serviceKey);
    const known = this.of(serviceKey);
    const warnings = this.#compute(serviceKey, inputs, onListeners);
    setList(this.#warnings, serviceKey, warnings);
    // Each VIP and namespace may cause a warning, see `contestWarnings`.
    const keyOf = ({ sliceKey, message }: ServiceWarning) => `${sliceKey} ${message}`;
    const keys = new Set(known.map(keyOf));
    return warnings.filter((warning) => !keys.has(keyOf(warning)));
  }

  #compute(
    serviceKey: ObjectKey,
    inputs: WarningInputs,
    onListeners: readonly ServiceWarning[],
  ): ServiceWarning[] {
    const { state, slices, routes, contestedVips, takenNodePorts, otherSpeakers, nodeAddresses } =
      inputs;
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
      ...takenNodePortWarnings(serviceKey, takenNodePorts),
      ...speakerWarnings(serviceKey, otherSpeakers),
      ...this.#ofOwnership(serviceKey, slices),
    ];
  }

  #ofOwnership(serviceKey: ObjectKey, slices: readonly EndpointSlice[]): ServiceWarning[] {
    const isWithoutPod = ({ reason }: EndpointWithoutSlice) => reason === HOLDER_REASONS.none;
    const withoutSlice = this.#withoutSlice.get(serviceKey) ?? [];
    const isAnyWithoutPod = withoutSlice.some(({ endpoints }) => endpoints.some(isWithoutPod));
    const isPersistent = this.#withoutPod.update(serviceKey, isAnyWithoutPod);
    return withoutRepeats(
      withoutSlice.flatMap(({ family, endpoints }) => {
        const candidates = () => candidatesForAllPorts(slices, family);
        const reported = endpoints.filter((each) => isPersistent || !isWithoutPod(each));
        return ownershipWarnings(serviceKey, candidates, reported);
      }),
    );
  }
}

/** Both families may give the same warning. */
function withoutRepeats(warnings: readonly ServiceWarning[]): ServiceWarning[] {
  return [...new Map(warnings.map((warning) => [warning.message, warning])).values()];
}
