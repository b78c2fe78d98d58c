/** Which endpoint a connection to a node port on localhost goes to. */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { EndpointAddress } from './forward.ts';

/** A TCP node port as it is served on the loopback address in one family, for modes whose rules cannot (KEP-6032). */
export interface LocalhostNodePort {
  /** Of the Route. */
  readonly id: string;
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** 0: it is not to be served any more. */
  readonly port: number;
  /** Those of the external traffic policy. */
  readonly endpoints: readonly { readonly address: string; readonly port: number }[];
  /** Seconds; 0 for no session affinity. */
  readonly affinitySeconds: number;
}

type Endpoints = Pick<LocalhostNodePort, 'endpoints' | 'affinitySeconds'>;

/**
 * Chooses an endpoint for each connection to one node port. All clients have the loopback address, so with session
 * affinity all of them stay on one endpoint until none has connected for the Service's timeout (KEP-6032).
 */
export class EndpointPicker {
  readonly #now: () => number;
  readonly #random: () => number;
  #endpoints: Endpoints['endpoints'] = [];
  #affinityTimeout = 0;
  #affinityEndpoint: EndpointAddress | undefined;
  #affinityExpiresAt = 0;

  /** @param now milliseconds. @param random at least 0 and less than 1. */
  constructor(endpoints: Endpoints, now: () => number, random: () => number = Math.random) {
    this.#now = now;
    this.#random = random;
    this.update(endpoints);
  }

  /** @throws RangeError without an endpoint. */
  update({ endpoints, affinitySeconds }: Endpoints): void {
    if (endpoints.length === 0) throw new RangeError('no endpoint to choose from');
    this.#endpoints = endpoints;
    this.#affinityTimeout = affinitySeconds * 1000;
  }

  /** The endpoint for a connection that is made now. */
  pick(): EndpointAddress {
    const now = this.#now();
    const kept =
      this.#affinityTimeout > 0 && now < this.#affinityExpiresAt
        ? this.#find(this.#affinityEndpoint)
        : undefined;
    const chosen = kept ?? this.#pickRandom();
    this.#affinityEndpoint = chosen;
    this.#affinityExpiresAt = now + this.#affinityTimeout;
    return chosen;
  }

  #find(target: EndpointAddress | undefined): EndpointAddress | undefined {
    return this.#endpoints.find(
      ({ address, port }) => address === target?.address && port === target.port,
    );
  }

  #pickRandom(): EndpointAddress {
    const index = Math.floor(this.#random() * this.#endpoints.length);
    const drawn = this.#endpoints[index];
    if (drawn === undefined) throw new RangeError(`no endpoint has number ${index}`);
    return drawn;
  }
}
