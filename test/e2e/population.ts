/** Seeded, random Services and EndpointSlices that are created, changed and deleted. */
import { random } from '../lab/demo/random.ts';
import { ALL_PORTS, type Manifest, type Pod, serviceManifest, sliceManifest } from './manifests.ts';

/** Writes to an API server, in this order. */
export interface ObjectChanges {
  readonly put: readonly Manifest[];
  readonly remove: readonly Manifest[];
}

/** A Service as a client uses it. */
export interface ReachableService {
  readonly vip: string;
  /** A port that answers. */
  readonly port: number;
  readonly pods: readonly Pod[];
}

/** One Service of the population, with a name never used before. */
interface ServiceObjects {
  readonly service: Manifest;
  readonly slices: readonly Manifest[];
  readonly pods: readonly Pod[];
  readonly template: ServiceTemplate;
}

const HTTP = { name: 'http', port: 80 };
const SLICE_PORTS = [
  { name: 'http', protocol: 'TCP', port: 8080 },
  { name: 'dns', protocol: 'UDP', port: 5353 },
];

/** Ports and annotations of a Service. */
interface ServiceTemplate {
  /** A TCP port that answers; undefined if the Service is refused. */
  readonly port: number | undefined;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly spec?: Readonly<Record<string, unknown>>;
}

const TEMPLATES: readonly ServiceTemplate[] = [
  { port: 80, spec: { ports: [HTTP] } },
  { port: 80, spec: { ports: [HTTP, { name: 'dns', protocol: 'UDP', port: 53 }] } },
  { port: 80, spec: { ports: [HTTP], sessionAffinity: 'ClientIP' } },
  { port: 4000, annotations: ALL_PORTS },
  { port: 5060, annotations: { 'portwide.dev/ports': '5060,20000-20100/UDP' } },
];
const REFUSED_TEMPLATE: ServiceTemplate = {
  port: undefined,
  annotations: { 'portwide.dev/ports': 'most' },
};

/** Pods that are not reachable, in addition to the lab's. */
const UNREACHABLE_PODS: readonly Pod[] = Array.from({ length: 50 }, (_, index) => ({
  name: `absent-${index}`,
  ipv4: `10.244.3.${index + 1}`,
  ipv6: `fd00:10:244:3::${(index + 1).toString(16)}`,
}));

/** A fixed number of Services on separate VIPs: every tenth is dual-stack, some are refused. */
export class Population {
  readonly #random: () => number;
  readonly #pods: readonly Pod[];
  readonly #members: ServiceObjects[];
  #names = 0;

  /** @param pods reachable pods; every fourth Service has no other pods. */
  constructor(size: number, pods: readonly Pod[], seed: number) {
    this.#random = random(seed);
    this.#pods = pods;
    this.#members = Array.from({ length: size }, (_, slot) => this.#member(slot));
  }

  objects(): readonly Manifest[] {
    return this.#members.flatMap(objectsOf);
  }

  /** Replaces some Services by others on the same VIPs, and changes endpoints or ports of some. */
  change(count: number): ObjectChanges {
    const put: Manifest[] = [];
    const remove: Manifest[] = [];
    for (let change = 0; change < count; change++) {
      const slot = Math.floor(this.#random() * this.#members.length);
      const before = this.#members[slot] as ServiceObjects;
      const kind = this.#random();
      const after = this.#member(slot, kind < 0.3 ? undefined : before, kind < 0.5);
      if (kind < 0.3) remove.push(...objectsOf(before));
      put.push(...objectsOf(after));
      this.#members[slot] = after;
    }
    // Leave out objects that were created and replaced within this round.
    const removed = new Set(remove.map(nameOf));
    return { put: put.filter((object) => !removed.has(nameOf(object))), remove };
  }

  /** Some Services, evenly selected, whose endpoints are all reachable. */
  served(count: number): readonly ReachableService[] {
    const found = this.#members.flatMap(({ pods, template }, slot) =>
      slot % 4 === 0 && template.port !== undefined && pods.length > 0
        ? [{ vip: vip(slot, 4), port: template.port, pods }]
        : [],
    );
    const step = Math.floor(found.length / count);
    return found.filter((_, index) => index % step === 0).slice(0, count);
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

  /** @param before keeps its name, and its template unless `reshaped`. */
  #member(slot: number, before?: ServiceObjects, reshaped = true): ServiceObjects {
    const name = before === undefined ? `service-${++this.#names}` : nameOf(before.service);
    const shapes = slot % 50 === 7 ? [REFUSED_TEMPLATE] : TEMPLATES;
    const template = before === undefined || reshaped ? this.#oneOf(shapes) : before.template;
    const candidates = slot % 4 === 0 ? this.#pods : [...this.#pods, ...UNREACHABLE_PODS];
    const some = this.#oneOf([0, 1, 2, 3, 4]);
    const pods = [...new Set(Array.from({ length: some }, () => this.#oneOf(candidates)))];
    const families = slot % 10 === 0 ? ([4, 6] as const) : ([4] as const);
    const { annotations = {}, spec } = template;
    const clusterIPs = families.map((family) => vip(slot, family));
    return {
      service: serviceManifest(name, { annotations, spec: { ...spec, clusterIPs } }),
      slices: families.map((family) => sliceManifest(name, family, pods, { ports: SLICE_PORTS })),
      pods,
      template,
    };
  }

  #oneOf<Choice>(choices: readonly Choice[]): Choice {
    return choices[Math.floor(this.#random() * choices.length)] as Choice;
  }
}

function objectsOf({ service, slices }: ServiceObjects): Manifest[] {
  return [service, ...slices];
}

function nameOf(manifest: Manifest): string {
  return (manifest.metadata as { name: string }).name;
}

function vip(slot: number, family: 4 | 6): string {
  if (family === 6) return `fd00:10:96::${(0x1000 + slot).toString(16)}`;
  return `10.96.${1 + Math.floor(slot / 250)}.${1 + (slot % 250)}`;
}
