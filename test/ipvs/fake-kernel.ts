import type { IpFamily } from '../../api/objects.ts';
import { destinationText, serviceText } from '../../ipvs/items.ts';
import { IpvsKernel, type KernelInterfaces } from '../../ipvs/kernel.ts';
import { EEXIST, ENOENT, ESRCH, NetlinkError } from '../../netlink/core/error.ts';
import type { IpsetChange, IpsetEntry, IpsetSpec } from '../../netlink/ipset/ipset.ts';
import type { IpvsChange, IpvsDestinationState, IpvsService } from '../../netlink/ipvs/ipvs.ts';
import { simulatedIptables } from '../iptables/restore-simulator.ts';

const FIRST_INDEX = 7;

interface FakeService {
  readonly service: IpvsService;
  /** By `address:port`. */
  readonly destinations: Map<string, IpvsDestinationState>;
}

interface FakeSet {
  readonly spec: IpsetSpec;
  /** By all fields but extensions, port by port. */
  readonly entries: Map<string, IpsetEntry>;
}

/** IPVS, ipsets, links and iptables in memory. Records each write as one line. */
export class FakeKernel {
  /** By `serviceText`. */
  readonly services = new Map<string, FakeService>();
  readonly sets = new Map<string, FakeSet>();
  /** Addresses on the dummy device. */
  readonly addresses = new Set<string>();
  /** Addresses that the kernel may choose as source addresses, as an older agent bound them. */
  readonly preferred = new Set<string>();
  /** VIPs with connections in conntrack. */
  readonly connected = new Set<string>();
  conntrackDumps = 0;
  hasDevice = false;
  deviceIndex = FIRST_INDEX;
  /** Lines that fail, with their errno. */
  readonly errors = new Map<string, number>();
  /** Called with each line before it is applied. */
  onLine: (line: string) => void = () => {};
  readonly #family: IpFamily;
  readonly #lines: string[] = [];
  readonly rules = simulatedIptables((table, lines) => {
    this.#recordLine(
      ['restore', table, ...lines.filter((line) => line.startsWith('-X '))].join(' '),
    );
  });

  constructor(family: IpFamily = 'IPv4') {
    this.#family = family;
  }

  open(): IpvsKernel {
    const parts = {
      ipvs: this.#ipvs,
      sets: this.#ipsets,
      links: this.#links,
      connectedVips: async (_: IpFamily, vips: ReadonlySet<string>) => {
        this.conntrackDumps += 1;
        return new Set([...this.connected].filter((vip) => vips.has(vip)));
      },
    };
    return new IpvsKernel(this.#family, parts);
  }

  /** Lines that were written, or failed, since the last call. */
  take(): string[] {
    return this.#lines.splice(0);
  }

  /**
   * Changes the state of a destination.
   * @param destination `address:port`
   */
  set(service: string, destination: string, state: Partial<IpvsDestinationState>): void {
    const destinations = this.services.get(service)?.destinations;
    const known = destinations?.get(destination);
    if (known === undefined) throw new Error(`no such destination: ${service} > ${destination}`);
    destinations?.set(destination, { ...known, ...state });
  }

  /** Writes as another program would, without a record. */
  write(...changes: (IpvsChange | IpsetChange)[]): void {
    for (const change of changes) {
      const errno = 'key' in change ? this.#changeTable(change) : this.#changeSet(change);
      if (errno !== undefined) throw new NetlinkError(lineOf(change), errno);
    }
  }

  #recordLine(line: string): number | undefined {
    this.#lines.push(line);
    this.onLine(line);
    return this.errors.get(line);
  }

  #try(line: string, work: () => number | undefined): void {
    const errno = this.#recordLine(line) ?? work();
    if (errno !== undefined) throw new NetlinkError(line, errno);
  }

  /** Like netlink, continues after a failed change. */
  #tryAll<Change extends IpvsChange | IpsetChange>(
    changes: readonly Change[],
    make: (change: Change) => number | undefined,
  ): { change: Change; error: NetlinkError }[] {
    return changes.flatMap((change) => {
      const line = lineOf(change);
      const errno = this.#recordLine(line) ?? make(change);
      return errno === undefined ? [] : [{ change, error: new NetlinkError(line, errno) }];
    });
  }

  readonly #ipvs: KernelInterfaces['ipvs'] = {
    services: async () => [...this.services.values()].map(({ service }) => service),
    destinations: async (key) => [
      ...(this.services.get(serviceText(key))?.destinations.values() ?? []),
    ],
    apply: async (changes) => this.#tryAll(changes, (change) => this.#changeTable(change)),
    close: async () => {},
  };

  #changeTable(change: IpvsChange): number | undefined {
    const text = serviceText(change.key);
    const found = this.services.get(text);
    if ('destination' in change) {
      return found === undefined ? ESRCH : changeDestination(found, change);
    }
    if (change.op === 'add-service' && found !== undefined) return EEXIST;
    if (change.op !== 'add-service' && found === undefined) return ESRCH;
    if (change.op === 'delete-service') this.services.delete(text);
    else {
      const service = { key: change.key, ...change.config };
      this.services.set(text, { service, destinations: found?.destinations ?? new Map() });
    }
    return undefined;
  }

  readonly #ipsets: KernelInterfaces['sets'] = {
    list: async () => [...this.sets.values()].map(headerOf),
    visitEntries: async (name, visit) => {
      const set = this.sets.get(name);
      if (set === undefined) throw new NetlinkError(`list ${name}`, ENOENT);
      for (const entry of set.entries.values()) visit(entry);
    },
    create: async (spec) =>
      this.#try(`create ${spec.name}`, () => {
        if (this.sets.has(spec.name)) return EEXIST;
        this.sets.set(spec.name, { spec, entries: new Map() });
        return undefined;
      }),
    destroy: async (name) =>
      this.#try(`destroy ${name}`, () => (this.sets.delete(name) ? undefined : ENOENT)),
    swap: async (a, b) =>
      this.#try(`swap ${a} ${b}`, () => {
        const [one, other] = [this.sets.get(a), this.sets.get(b)];
        if (one === undefined || other === undefined) return ENOENT;
        this.sets.set(a, { ...other, spec: { ...other.spec, name: a } });
        this.sets.set(b, { ...one, spec: { ...one.spec, name: b } });
        return undefined;
      }),
    change: async (changes) => this.#tryAll(changes, (change) => this.#changeSet(change)),
    close: async () => {},
  };

  #changeSet({ op, set, entry }: IpsetChange): number | undefined {
    const entries = this.sets.get(set)?.entries;
    if (entries === undefined) return ENOENT;
    const { portTo = entry.port, ...first } = entry;
    for (let port = first.port; ; port = (port ?? 0) + 1) {
      const single = port === undefined ? first : { ...first, port };
      const { ip, protocol, ip2, mark } = single;
      const name = `${ip} ${protocol} ${port} ${ip2} ${mark}`;
      if (op === 'add') entries.set(name, single);
      else entries.delete(name);
      if (port === portTo) return undefined;
    }
  }

  readonly #links: KernelInterfaces['links'] = {
    findLink: async () => (this.hasDevice ? this.deviceIndex : undefined),
    createDummy: async (name) => {
      this.#try(`link ${name}`, () => (this.hasDevice ? EEXIST : undefined));
      this.hasDevice = true;
      return this.deviceIndex;
    },
    changeAddresses: async (_index, adds, removes) => [
      ...adds.flatMap((address) => this.#changeAddress('add', address)),
      ...removes.flatMap((address) => this.#changeAddress('remove', address)),
    ],
    listBoundAddresses: async () =>
      ['fe80::1', ...this.addresses].map((address) => ({
        address,
        family: address.includes(':') ? 'IPv6' : 'IPv4',
        isUpToDate: !this.preferred.has(address),
      })),
  };

  #changeAddress(op: 'add' | 'remove', address: string) {
    const line = `${op} address ${address}`;
    const errno = this.#recordLine(line);
    if (errno !== undefined) return [{ op, address, error: new NetlinkError(line, errno) }];
    this.addresses[op === 'add' ? 'add' : 'delete'](address);
    this.preferred.delete(address);
    return [];
  }
}

function changeDestination(
  { destinations }: FakeService,
  { op, destination }: Extract<IpvsChange, { destination: unknown }>,
): number | undefined {
  const { address, port } = destination;
  const name = `${address}:${port}`;
  const state = destinations.get(name);
  if (op === 'add-destination' && state !== undefined) return EEXIST;
  if (op !== 'add-destination' && state === undefined) return ENOENT;
  if (op === 'delete-destination') destinations.delete(name);
  else {
    const idle = { activeConnections: 0, inactiveConnections: 0, persistentConnections: 0 };
    const { weight } = destination;
    destinations.set(name, { ...idle, ...state, address, port, weight, masquerade: true });
  }
  return undefined;
}

function headerOf({ spec, entries }: FakeSet) {
  const { name, type, family, skbinfo, comments = false, maxElements } = spec;
  const isBitmap = type === 'bitmap:port';
  return {
    name,
    type,
    family: isBitmap ? undefined : family,
    revision: 1,
    skbinfo,
    comments,
    maxElements: isBitmap ? undefined : maxElements,
    elements: entries.size,
    references: 0,
  };
}

/** `add KUBE-CLUSTER-IP 10.96.0.10 TCP 80`, `edit-destination FWM 4098 > 10.244.0.1:0 weight 0` */
function lineOf(change: IpvsChange | IpsetChange): string {
  if ('set' in change) {
    return [change.op, change.set, ...Object.values(change.entry)].join(' ');
  }
  if (!('destination' in change)) return `${change.op} ${serviceText(change.key)}`;
  const what = `${change.op} ${destinationText(change.key, change.destination)}`;
  if (change.op === 'delete-destination') return what;
  return `${what} weight ${change.destination.weight}`;
}
