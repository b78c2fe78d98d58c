/** Services by the addresses of their endpoints, so that a change of a Pod does not walk all endpoints. */
import { setList } from '../api/collections.ts';
import type { EndpointSlice, ObjectKey } from '../api/objects.ts';

export class EndpointAddresses {
  readonly #services = new Map<string, readonly ObjectKey[]>();
  /** What is indexed of each Service. */
  readonly #slices = new Map<ObjectKey, readonly EndpointSlice[]>();

  /** Replaces the slices of a Service. */
  set(service: ObjectKey, slices: readonly EndpointSlice[]): void {
    const earlier = this.#slices.get(service) ?? [];
    setList(this.#slices, service, slices);
    const [before, after] = [addressesIn(earlier), addressesIn(slices)];
    for (const address of before) if (!after.has(address)) this.#remove(address, service);
    for (const address of after) {
      // A list made by spread takes three times the memory.
      if (!before.has(address)) this.#services.set(address, this.#at(address).concat(service));
    }
  }

  /** Services with an endpoint at one of the addresses. */
  servicesAt(addresses: Iterable<string>): Set<ObjectKey> {
    const found = new Set<ObjectKey>();
    for (const address of addresses) for (const service of this.#at(address)) found.add(service);
    return found;
  }

  #at(address: string): readonly ObjectKey[] {
    return this.#services.get(address) ?? [];
  }

  #remove(address: string, service: ObjectKey): void {
    const others = this.#at(address).filter((other) => other !== service);
    setList(this.#services, address, others);
  }
}

function addressesIn(slices: readonly EndpointSlice[]): Set<string> {
  return new Set(slices.flatMap(({ endpoints }) => endpoints.map(({ address }) => address)));
}
