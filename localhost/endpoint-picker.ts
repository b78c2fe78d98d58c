/** Selects endpoints for connections to node ports on localhost. */
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import type { EndpointAddress } from './forward.ts';

/**
 * A TCP node port that the agent serves on the loopback address of one family, in modes whose rules
 * cannot serve node ports there (KEP-6032).
 */
export interface LocalhostNodePort {
  /** Route id. */
  readonly id: string;
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** 0: the node port is no longer served. */
  readonly port: number;
  /** Endpoints that the external traffic policy selects. */
  readonly endpoints: readonly { readonly address: string; readonly port: number }[];
  /** Session affinity timeout in seconds; 0: no session affinity. */
  readonly affinitySeconds: number;
}

type Endpoints = Pick<LocalhostNodePort, 'endpoints' | 'affinitySeconds'>;

/**
 * Selects an endpoint for each connection to one node port. All clients have the loopback address.
 * With session affinity, all of them therefore stay on one endpoint until no client has connected
 * for the Service's timeout (KEP-6032).
 */
export class EndpointPicker {
  readonly #now: () => number;
  readonly #random: () => number;
  #endpoints: Endpoints['endpoints'] = [];
  #affinityTimeout = 0;
  #affinityEndpoint: EndpointAddress | undefined;
  #affinityExpiresAt = 0;

  /**
   * @param now clock in milliseconds.
   * @param random returns a number of at least 0 and less than 1.
   */
  constructor(endpoints: Endpoints, now: () => number, random: () => number = Math.random) {
    this.#now = now;
    this.#random = random;
    this.update(endpoints);
  }

  /** @throws RangeError if there is no endpoint. */
  update({ endpoints, affinitySeconds }: Endpoints): void {
    if (endpoints.length === 0) throw new RangeError('node port has no endpoints');
    this.#endpoints = endpoints;
    this.#affinityTimeout = affinitySeconds * 1000;
  }

  /** Selects the endpoint of a new connection. */
  pick(): EndpointAddress {
    const now = this.#now();
    const kept =
      this.#affinityTimeout > 0 && now < this.#affinityExpiresAt
        ? this.#find(this.#affinityEndpoint)
        : undefined;
    const selected = kept ?? this.#pickRandom();
    this.#affinityEndpoint = selected;
    this.#affinityExpiresAt = now + this.#affinityTimeout;
    return selected;
  }

  #find(target: EndpointAddress | undefined): EndpointAddress | undefined {
    return this.#endpoints.find(
      ({ address, port }) => address === target?.address && port === target.port,
    );
  }

  #pickRandom(): EndpointAddress {
    const index = Math.floor(this.#random() * this.#endpoints.length);
    const picked = this.#endpoints[index];
    if (picked === undefined)
      throw new RangeError(`random number selects endpoint ${index}, which does not exist`);
    return picked;
  }
}
