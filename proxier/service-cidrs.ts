/** Stores ServiceCIDRs, and decides which of their CIDRs are in use. */
import { compareText } from '../api/collections.ts';
import type { ApiObject, Kind, Node, ObjectKey, ServiceCidr } from '../api/objects.ts';
import { otherAddressesIn } from '../services/service-cidrs.ts';
import type { ObjectSink } from '../sources/source.ts';

/** A CIDR of a ServiceCIDR that is not used. */
export interface IgnoredServiceCidr {
  readonly object: ServiceCidr;
  readonly cidr: string;
  /** What the CIDR contains. */
  readonly reason: string;
}

export interface ServiceCidrsOptions {
  readonly nodeName: string;
  /** `--service-cidrs`: used whatever they contain. */
  readonly given: readonly string[];
  /** `--cluster-cidr`. */
  readonly clusterCidr: readonly string[];
  /** Called after a change of `cidrs`. */
  readonly onChange: () => void;
  /** Called once for each CIDR that is newly ignored. */
  readonly onIgnored: (ignored: IgnoredServiceCidr) => void;
}

/**
 * The CIDRs of cluster IPs: of `--service-cidrs` and of ServiceCIDR objects. Ignores CIDRs with every address, with an
 * address of this node, or with pods: dropping packets to them would cut the node off. The
 * first sync waits for their list, see `RouteTableOptions.awaitedKinds`; a server without the API has an empty list.
 */
export class ServiceCidrs implements ObjectSink {
  readonly #options: ServiceCidrsOptions;
  readonly #objects = new Map<ObjectKey, ServiceCidr>();
  #node: Node | undefined;
  #ignored: ReadonlySet<string> = new Set();
  #cidrs: readonly string[];

  constructor(options: ServiceCidrsOptions) {
    this.#options = options;
    this.#cidrs = this.#inUse([]);
  }

  /** The CIDRs in use, in a stable order. */
  get cidrs(): readonly string[] {
    return this.#cidrs;
  }

  upsert(object: ApiObject): void {
    if (object.kind === 'ServiceCIDR') this.#objects.set(object.key, object);
    else if (object.kind === 'Node' && object.name === this.#options.nodeName) this.#node = object;
    else return;
    this.#update();
  }

  remove(kind: Kind, key: ObjectKey): void {
    if (kind === 'ServiceCIDR' && this.#objects.delete(key)) this.#update();
  }

  /** Nothing to do: `RouteTable` waits for the lists. */
  synced(): void {}

  #update(): void {
    const { clusterCidr, onChange, onIgnored } = this.#options;
    const others = {
      nodeAddresses: this.#node?.addresses ?? [],
      podCidrs: [...new Set([...(this.#node?.podCIDRs ?? []), ...clusterCidr])],
    };
    const usable: string[] = [];
    const ignored = new Set<string>();
    for (const object of this.#objects.values()) {
      for (const cidr of object.cidrs) {
        const contained = cidr.endsWith('/0') ? ['every address'] : otherAddressesIn(cidr, others);
        if (contained.length === 0) {
          usable.push(cidr);
          continue;
        }
        const reason = `contains ${contained.join(', ')}`;
        const id = `${object.key} ${object.uid} ${cidr} ${reason}`;
        ignored.add(id);
        if (!this.#ignored.has(id)) onIgnored({ object, cidr, reason });
      }
    }
    this.#ignored = ignored;
    const cidrs = this.#inUse(usable);
    if (cidrs.join() === this.#cidrs.join()) return;
    this.#cidrs = cidrs;
    onChange();
  }

  #inUse(usable: readonly string[]): readonly string[] {
    return [...new Set([...this.#options.given, ...usable])].sort(compareText);
  }
}
