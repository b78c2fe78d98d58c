/**
 * A large random cluster that changes constantly, and an enforcer that follows it in a network
 * namespace.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { IP_FAMILIES, type IpFamily } from '../../api/objects.ts';
import type {
  LabelSelector,
  Labels,
  Pod,
  Policy,
  PolicyPeer,
  PolicyRule,
  PortMatch,
} from '../../api/policy-objects.ts';
import { NftMonitor } from '../../nft/monitor.ts';
import { AppliedState } from '../../policy/compile/applied-state.ts';
import { Enforcer } from '../../policy/enforce/enforcer.ts';
import { PolicyKernel } from '../../policy/enforce/kernel.ts';
import { PolicyModel } from '../../policy/model/model.ts';
import { systemTimers } from '../../sync/timers.ts';
import { Random } from '../random.ts';
import type { Change } from './generated.ts';
import { group, HERE, labelled, namespace, pod, type TestObject, THERE } from './objects.ts';

const SPACES = 20;
const APPS = ['a', 'b', 'c'];
const TIERS = ['1', '2'];
const GROUPS = 10;

export interface Size {
  readonly policies: number;
  readonly pods: number;
}

/** Random objects by kind and key. A change replaces, adds or removes one of them. */
class Cluster {
  readonly #random: Random;
  readonly #size: Size;
  readonly #objects = new Map<string, TestObject>();

  constructor(seed: number, size: Size) {
    this.#random = new Random(seed);
    this.#size = size;
    for (let index = 0; index < SPACES; index++) this.#put(this.#namespace(index));
    for (let index = 0; index < GROUPS; index++) this.#put(this.#group(index));
    for (let index = 0; index < size.pods; index++) this.#put(this.#pod(index));
    for (let index = 0; index < size.policies; index++) this.#put(this.#policy(index));
  }

  get objects(): readonly TestObject[] {
    return [...this.#objects.values()];
  }

  /** Replaces, adds or removes one object. */
  change(): Change {
    const random = this.#random;
    const { pods, policies } = this.#size;
    const object = random.pick([
      () => this.#pod(random.integer(0, pods - 1)),
      () => this.#pod(random.integer(0, pods - 1)),
      () => this.#policy(random.integer(0, policies - 1)),
      () => this.#policy(random.integer(0, policies - 1)),
      () => this.#group(random.integer(0, GROUPS - 1)),
      ...(random.chance(0.1) ? [() => this.#namespace(random.integer(0, SPACES - 1))] : []),
    ])();
    const { kind, key } = object;
    if (!random.chance(0.25) || !this.#objects.has(`${kind} ${key}`)) {
      this.#put(object);
      return { upsert: object };
    }
    this.#objects.delete(`${kind} ${key}`);
    return { remove: { kind, key } };
  }

  #put(object: TestObject): void {
    this.#objects.set(`${object.kind} ${object.key}`, object);
  }

  #labels(): Labels {
    return { app: this.#random.pick(APPS), tier: this.#random.pick(TIERS) };
  }

  #namespace(index: number): TestObject {
    return namespace(`space-${index}`, { team: this.#random.pick(['x', 'y', 'z']) });
  }

  #group(index: number): TestObject {
    const cidrs = this.#random.many(0, 5, () => this.#cidr());
    return group(`group-${index}`, this.#labels(), [...new Set(cidrs)]);
  }

  #cidr(): string {
    const part = this.#random.integer(0, 63) * 4;
    return this.#random.pick([
      `10.1.0.${part}/30`,
      `10.9.${part}.0/22`,
      `fd00:1::${part.toString(16)}/126`,
      `2001:db8:${part.toString(16)}::/46`,
    ]);
  }

  /** A pod whose address another pod may have as well, as when addresses are reused. */
  #pod(index: number): Pod {
    const number = this.#random.chance(0.1) ? this.#random.integer(0, this.#size.pods) : index;
    const address = this.#random.chance(0.05)
      ? []
      : [`10.1.0.${number + 1}`, `fd00:1::${(number + 1).toString(16)}`];
    return pod(`pod-${index}`, {
      namespace: `space-${index % SPACES}`,
      nodeName: index % 5 < 3 ? HERE : THERE,
      creationTimestamp: this.#random.pick(['2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z']),
      addresses: address,
      labels: this.#labels(),
      finished: this.#random.chance(0.05),
      namedPorts: this.#random.chance(0.7)
        ? [{ name: 'web', protocol: 'TCP', port: this.#random.pick([80, 8080]) }]
        : [],
    });
  }

  #selector(): LabelSelector {
    const all = this.#labels();
    const { app = '', tier = '' } = all;
    return this.#random.pick([[], labelled({ app }), labelled({ tier }), labelled(all)]);
  }

  /** A NetworkPolicy, or sometimes a ClusterNetworkPolicy. */
  #policy(index: number): Policy {
    const random = this.#random;
    const isAcross = index % 50 === 0;
    const own = `space-${index % SPACES}`;
    const rules = (direction: string, actions: readonly PolicyRule['action'][]) =>
      random.many(0, 2, (at) => ({
        path: `spec.${direction}[${at}]`,
        name: '',
        action: random.pick(actions),
        peers: random.chance(0.2) ? undefined : random.many(1, 2, () => this.#peer(own)),
        ports: random.chance(0.3) ? undefined : random.many(1, 2, () => this.#port()),
      }));
    const actions = isAcross ? (['Allow', 'Deny', 'Pass'] as const) : (['Allow'] as const);
    const name = `policy-${index}`;
    return {
      kind: isAcross ? 'ClusterNetworkPolicy' : 'NetworkPolicy',
      key: isAcross ? name : `${own}/${name}`,
      namespace: isAcross ? '' : own,
      name,
      uid: '',
      tier: isAcross ? random.pick(['Admin', 'Baseline'] as const) : 'NetworkPolicy',
      priority: isAcross ? random.integer(0, 9) : 0,
      subject: {
        namespaces: isAcross ? labelled({ team: random.pick(['x', 'y']) }) : own,
        pods: this.#selector(),
      },
      ingress: random.chance(0.7) ? rules('ingress', actions) : undefined,
      egress: random.chance(0.7) ? rules('egress', actions) : undefined,
      faults: [],
    };
  }

  #peer(own: string): PolicyPeer {
    const random = this.#random;
    const namespaces = random.pick([own, [], labelled({ team: random.pick(['x', 'y', 'z']) })]);
    return random.pick<PolicyPeer>([
      { kind: 'pods', selection: { namespaces, pods: this.#selector() } },
      { kind: 'network', cidr: this.#cidr(), except: [] },
      { kind: 'cidrGroups', selector: this.#selector() },
    ]);
  }

  #port(): PortMatch {
    const random = this.#random;
    if (random.chance(0.2)) return { protocol: undefined, name: 'web' };
    const first = random.integer(1, 200);
    return {
      protocol: random.pick(['TCP', 'UDP', 'SCTP'] as const),
      first,
      last: first + random.pick([0, 1, 100]),
    };
  }
}

let model: PolicyModel | undefined;
let kernel: PolicyKernel | undefined;
let enforcer: Enforcer | undefined;
let monitor: NftMonitor | undefined;
let log: string[] = [];
/** IP families with changes that are not in the kernel. */
const behind = new Set<IpFamily>();
/** IP families in `behind` whose enforcer run has begun. */
const begun = new Set<IpFamily>();
let caughtUp = Promise.withResolvers<void>();

function feed(change: Change): void {
  if ('upsert' in change) model?.upsert(change.upsert);
  else model?.remove(change.remove.kind, change.remove.key);
  if (behind.size === 0) caughtUp = Promise.withResolvers();
  for (const family of IP_FAMILIES) behind.add(family);
  begun.clear();
  enforcer?.changed();
}

export const churn = {
  /** Starts an enforcer with these objects; resolves when the kernel is in sync. */
  async churnStart(objects: readonly TestObject[]): Promise<void> {
    log = [];
    const end = (family: IpFamily) => {
      if (begun.delete(family)) behind.delete(family);
      if (behind.size === 0) caughtUp.resolve();
    };
    begun.clear();
    model = new PolicyModel({ nodeName: HERE });
    const applied = new AppliedState(model);
    monitor = new NftMonitor(systemTimers);
    kernel = new PolicyKernel({
      families: IP_FAMILIES,
      onWarning: (family, message) => log.push(`${family} warned ${message}`),
    });
    enforcer = new Enforcer({
      kernel,
      source: {
        takeChanges: () => applied.takeChanges(),
        snapshot: (family) => applied.snapshot(family),
        fqdnContent: () => ({ elements: [], entries: [] }),
      },
      timers: systemTimers,
      monitor,
      observer: {
        started: (family) => begun.add(family),
        unchanged: end,
        compiled: () => {},
        applied: end,
        failed: (family, error) => log.push(`${family} failed ${String(error)}`),
        driftDetected: (family, what) => log.push(`${family} drift ${what}`),
        missedChanges: () => {},
        watchFailed: (error) => log.push(`watch failed ${String(error)}`),
      },
    });
    for (const object of objects) feed({ upsert: object });
    enforcer.start();
    await caughtUp.promise;
  },

  /**
   * Makes a number of changes in random batches, and only sometimes waits until the kernel is in
   * sync.
   * @returns the final objects.
   */
  async churnAll(seed: number, size: Size, changes: number): Promise<readonly TestObject[]> {
    const cluster = new Cluster(seed, size);
    const pace = new Random(seed);
    await churn.churnStart(cluster.objects);
    for (let made = 0; made < changes; ) {
      const batch = Math.min(pace.integer(1, 20), changes - made);
      for (let index = 0; index < batch; index++) {
        const change = cluster.change();
        feed(change);
      }
      made += batch;
      await (pace.chance(0.5) ? caughtUp.promise : nextTurn());
    }
    await caughtUp.promise;
    return cluster.objects;
  },

  churnLog: async (): Promise<readonly string[]> => log,

  async churnStop(): Promise<void> {
    await monitor?.close();
    await enforcer?.stop();
    await kernel?.close();
    enforcer = undefined;
  },
};
