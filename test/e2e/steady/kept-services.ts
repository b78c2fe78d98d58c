/**
 * Services that clients use while they change: each always has an endpoint that answers, so no connection to it may
 * fail.
 */
import { Random } from '../../random.ts';
import {
  ALL_PORTS,
  type Manifest,
  type Pod,
  serviceManifest,
  sliceManifest,
} from '../manifests.ts';

/** An address and port that always answers. */
export interface Target {
  readonly address: string;
  readonly port: number;
}

interface Template {
  readonly tcp: number;
  readonly udp?: number;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly ports?: readonly Readonly<Record<string, unknown>>[];
}

interface Member {
  readonly pods: readonly Pod[];
  readonly isSticky: boolean;
  /** Whether the Service has a further port. */
  readonly hasMore: boolean;
}

const HTTP = { name: 'http', port: 80 };
const DNS = { name: 'dns', port: 53, protocol: 'UDP' };
const MORE = { name: 'more', port: 8443 };
const TEMPLATES: readonly Template[] = [
  { tcp: 80, ports: [HTTP] },
  { tcp: 80, udp: 53, ports: [HTTP, DNS] },
  { tcp: 4000, udp: 4000, annotations: ALL_PORTS },
  { tcp: 5060, udp: 20_000, annotations: { 'portwide.dev/ports': '5060,20000-20100/UDP' } },
];
const SLICE_PORTS = [
  { name: 'http', protocol: 'TCP', port: 8080 },
  { name: 'dns', protocol: 'UDP', port: 5353 },
  { name: 'more', protocol: 'TCP', port: 8443 },
];
/** Every fifth Service is dual-stack. */
const DUAL_STACK = 5;

/** Seeded. All pods must answer on every port, also while they are no endpoints. */
export class KeptServices {
  readonly #random: Random;
  readonly #pods: readonly Pod[];
  readonly #members: Member[];

  /** @param size at most 250 */
  constructor(size: number, pods: readonly Pod[], seed: number) {
    this.#random = new Random(seed);
    this.#pods = pods;
    this.#members = Array.from({ length: size }, () => ({
      pods: this.#somePods(),
      isSticky: false,
      hasMore: false,
    }));
  }

  objects(): readonly Manifest[] {
    return this.#members.flatMap((_, slot) => this.#objectsOf(slot));
  }

  /** Changes `count` Services: mostly their endpoints, else session affinity or ports. @returns their objects */
  change(count: number): readonly Manifest[] {
    return Array.from({ length: count }).flatMap(() => {
      const slot = this.#random.integer(0, this.#members.length - 1);
      const member = this.#members[slot] as Member;
      const kind = this.#random.next();
      if (kind < 0.1) this.#members[slot] = { ...member, isSticky: !member.isSticky };
      else if (kind < 0.2) this.#members[slot] = { ...member, hasMore: !member.hasMore };
      else this.#members[slot] = { ...member, pods: this.#somePods() };
      return this.#objectsOf(slot);
    });
  }

  /** Addresses of the endpoints of each VIP. */
  endpoints(): Map<string, ReadonlySet<string>> {
    return new Map(
      this.#members.flatMap(({ pods }, slot) => [
        [vip(slot, 4), new Set(pods.map(({ ipv4 }) => ipv4))] as const,
        [vip(slot, 6), new Set(pods.map(({ ipv6 }) => ipv6))] as const,
      ]),
    );
  }

  targets(protocol: 'tcp' | 'udp'): readonly Target[] {
    return this.#members.flatMap((_, slot) => {
      const port = templateOf(slot)[protocol];
      return port === undefined
        ? []
        : familiesOf(slot).map((family) => ({ address: vip(slot, family), port }));
    });
  }

  #somePods(): readonly Pod[] {
    const first = this.#random.pick(this.#pods);
    return [first, ...this.#pods.filter((pod) => pod !== first && this.#random.chance(0.4))];
  }

  #objectsOf(slot: number): readonly Manifest[] {
    const { pods, isSticky, hasMore } = this.#members[slot] as Member;
    const { annotations, ports } = templateOf(slot);
    const name = `kept-${slot}`;
    const families = familiesOf(slot);
    const spec = {
      clusterIPs: families.map((family) => vip(slot, family)),
      ...(ports !== undefined && { ports: hasMore ? [...ports, MORE] : ports }),
      sessionAffinity: isSticky ? 'ClientIP' : 'None',
    };
    return [
      serviceManifest(name, { ...(annotations && { annotations }), spec }),
      ...families.map((family) => sliceManifest(name, family, pods, { ports: SLICE_PORTS })),
    ];
  }
}

function templateOf(slot: number): Template {
  return TEMPLATES[slot % TEMPLATES.length] as Template;
}

function familiesOf(slot: number): readonly (4 | 6)[] {
  return slot % DUAL_STACK === 0 ? [4, 6] : [4];
}

function vip(slot: number, family: 4 | 6): string {
  return family === 4 ? `10.96.100.${1 + slot}` : `fd00:10:96::${(0x6400 + slot).toString(16)}`;
}
