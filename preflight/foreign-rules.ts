/** Checks of rules of other programs: masquerade that hides clients, and drops of traffic to endpoints. */
import { socketAddress } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import { finish, type Steps } from '../api/steps.ts';
import { PRIORITY } from '../netlink/nftables/hooks.ts';
import {
  type BaseChain,
  dependenceOf,
  type Ending,
  type TestPacket,
  walkSteps,
} from './packet-walk.ts';
import { type CheckResult, type Fact, fail, notSeen, ok, warn } from './result.ts';

/** Addresses for test packets of one family; undefined where none is known. */
export interface TestAddresses {
  /** A pod on this node. */
  readonly pod: string | undefined;
  /** An endpoint on another node, or another pod. */
  readonly endpoint: string | undefined;
  readonly node: string | undefined;
  /** Ports of endpoints that are pods, a sample of `targetCount`. */
  readonly targets: readonly TestTarget[];
  readonly targetCount: number;
  /** Ports of cluster IPs, a sample. */
  readonly vips: readonly TestTarget[];
}

/** What test packets go to. */
export interface TestTarget {
  readonly address: string;
  readonly port: number;
  readonly protocol: Protocol;
}

/**
 * Chains in which network plugins enforce their own network policy and masquerade, by sets and marks. What they may do
 * is not reported, only what they certainly do.
 */
const PLUGIN_CHAINS = /^(cali-|CILIUM_|KUBE-POD-FW-|KUBE-NWPLCY-|KUBE-ROUTER-|WEAVE-)/;

/** Addresses outside of every cluster (RFC 5737, RFC 3849). */
const OUTSIDE = { IPv4: '198.51.100.7', IPv6: '2001:db8::7' } as const;

/** A chain that may do something to a test packet. */
export interface Finding {
  readonly base: BaseChain;
  readonly isCertain: boolean;
  readonly ending: Ending;
  /** Chains that may decide so, each for a part of the cases that cannot be told apart. */
  readonly chains: readonly string[];
  readonly packet: TestPacket;
}

/** A port that endpoints may serve; rules that name ports are rarely about this one. */
const ENDPOINT_PORT = 20_104;

/**
 * Rules at hook postrouting that masquerade traffic from pods to endpoints.
 * @param needsSources whether network policy is enforced, which then sees the wrong source.
 */
export function checkMasquerade(
  chains: Fact<readonly BaseChain[]>,
  addresses: readonly TestAddresses[],
  needsSources: boolean,
): CheckResult[] {
  return evaluated('CNI masquerade', (name) => masquerades(name, chains, addresses, needsSources));
}

function masquerades(
  name: string,
  chains: Fact<readonly BaseChain[]>,
  addresses: readonly TestAddresses[],
  needsSources: boolean,
): CheckResult[] {
  if ('notSeen' in chains) return [notSeen(name, chains)];
  const packets = podPackets(addresses);
  if (packets.length === 0) return [notSeen(name, NO_ADDRESSES)];
  const bases = chains.value.filter(({ hook }) => hook === 'postrouting');
  const found = findings(bases, packets, 'masquerade');
  if (found.length === 0) {
    return [ok(name, 'no rule masquerades connections from pods to endpoints')];
  }
  const action =
    'exclude the pod CIDR from this rule: endpoints and network policies see the address of the node as the client';
  return found.map(({ base, ending, isCertain }) => {
    const place = placeOf(base, ending);
    if (!isCertain) {
      return warn(
        name,
        `${place} may masquerade connections from pods to endpoints (it depends on ${dependenceOf(ending)})`,
        action,
      );
    }
    const seen = `${place} masquerades connections from pods to endpoints`;
    return needsSources ? fail(name, seen, action) : warn(name, seen, action);
  });
}

/**
 * Rules and policies that drop connections to endpoints (forward), or to the node's health servers (input).
 * @param healthPorts see `healthPorts`.
 */
export function checkDrops(
  chains: Fact<readonly BaseChain[]>,
  addresses: readonly TestAddresses[],
  healthPorts: readonly number[],
): CheckResult[] {
  return evaluated('foreign drop rules', (name) => drops(name, chains, addresses, healthPorts));
}

function drops(
  name: string,
  chains: Fact<readonly BaseChain[]>,
  addresses: readonly TestAddresses[],
  healthPorts: readonly number[],
): CheckResult[] {
  if ('notSeen' in chains) return [notSeen(name, chains)];
  const ofHook = (hook: BaseChain['hook']) => chains.value.filter((chain) => chain.hook === hook);
  const enters = ofHook('prerouting');
  const isBefore = ({ priority }: BaseChain) => priority < PRIORITY.dstnat;
  const before = enters.filter(isBefore);
  const after = [...enters.filter((base) => !isBefore(base)), ...ofHook('forward')];
  const found = (packets: readonly TestPacket[]) => [
    ...findings(
      before,
      packets.map((packet) => ({ ...packet, isTranslated: false })),
      'drop',
    ),
    ...findings(after, packets, 'drop'),
  ];
  const toTarget = (from: string) => (finding: Finding) =>
    dropResult(finding, `connections from ${from} to ${targetText(finding.packet)}`, warn);
  const packets = podPackets(addresses);
  const health = healthPackets(addresses, healthPorts);
  const results = distinct([
    ...found(packets).map((finding) =>
      dropResult(finding, 'connections from pods to endpoints', fail),
    ),
    ...found(outsidePackets(addresses)).map((finding) =>
      dropResult(finding, 'connections from outside to endpoints', warn),
    ),
    ...found(targetPackets(addresses, 'pods')).map(toTarget('pods')),
    ...found(targetPackets(addresses, 'outside')).map(toTarget('outside')),
    ...findings(before, vipPackets(addresses), 'drop').map(toTarget('pods')),
    ...findings(ofHook('input'), health, 'drop').map((finding) =>
      dropResult(finding, `health checks of load balancers (port ${finding.packet.port})`, warn),
    ),
  ]);
  if (packets.length === 0) results.push(notSeen(name, NO_ADDRESSES));
  const unknown = notEvaluated(chains.value).map((text) => notSeen(name, { notSeen: text }));
  if (results.length > 0) return [...results, ...unknown];
  const hasHealth = health.length > 0;
  const count = enters.length + ofHook('forward').length + (hasHealth ? ofHook('input').length : 0);
  const [hooks, traffic] = hasHealth
    ? ['hooks prerouting, forward and input', 'health checks or traffic to endpoints']
    : ['hooks prerouting and forward', 'traffic to endpoints'];
  return [
    ok(
      name,
      `none of ${count} base chains of other programs at ${hooks} drops ${traffic} (${testedText(addresses)})`,
    ),
    ...unknown,
  ];
}

/** Names of base chains to list. */
const MAX_NAMES = 5;

/** Says that rules of interfaces and bridges are not evaluated; empty if there are none. */
export function notEvaluated(chains: readonly BaseChain[]): string[] {
  const others = chains.filter(({ hook }) => hook === 'other');
  if (others.length === 0) return [];
  const names = others.slice(0, MAX_NAMES).map(({ table, chain }) => `${chain} of table ${table}`);
  const more = others.length > MAX_NAMES ? ` and ${others.length - MAX_NAMES} more` : '';
  return [
    `rules of interfaces and bridges are not evaluated: base chain ${names.join(', ')}${more}`,
  ];
}

function testedText(addresses: readonly TestAddresses[]): string {
  const all = addresses.reduce((sum, { targetCount }) => sum + targetCount, 0);
  const tested = addresses.reduce((sum, { targets }) => sum + targets.length, 0);
  if (all === 0) return `tested with port ${ENDPOINT_PORT}`;
  const some = tested < all ? `${tested} of ${all}` : `${all}`;
  return `tested with ${some} ports of endpoints`;
}

function targetText({ destination, port, protocol }: TestPacket): string {
  return `${socketAddress(destination, port)}/${protocol ?? 'TCP'}`;
}

/** Runs a check that walks rules; a ruleset that is too large to evaluate is not seen. */
function evaluated(name: string, check: (name: string) => CheckResult[]): CheckResult[] {
  try {
    return check(name);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return [notSeen(name, { notSeen: error.message })];
  }
}

const NO_ADDRESSES = {
  notSeen: 'no pod addresses are known (pod CIDRs, --cluster-cidr, endpoints)',
};

function podPackets(addresses: readonly TestAddresses[]): TestPacket[] {
  return addresses.flatMap(({ pod, endpoint }) =>
    pod === undefined || endpoint === undefined
      ? []
      : [{ source: pod, destination: endpoint, port: ENDPOINT_PORT }],
  );
}

function outsidePackets(addresses: readonly TestAddresses[]): TestPacket[] {
  return addresses.flatMap(({ pod }) =>
    pod === undefined ? [] : [{ source: outside(pod), destination: pod, port: ENDPOINT_PORT }],
  );
}

function targetPackets(
  addresses: readonly TestAddresses[],
  from: 'pods' | 'outside',
): TestPacket[] {
  return addresses.flatMap(({ pod, endpoint, targets }) =>
    targets.flatMap(({ address, ...target }) => {
      const inside = address === pod ? endpoint : pod;
      const source = from === 'pods' ? inside : outside(address);
      return source === undefined ? [] : [{ source, destination: address, ...target }];
    }),
  );
}

function vipPackets(addresses: readonly TestAddresses[]): TestPacket[] {
  return addresses.flatMap(({ pod: source, vips }) =>
    vips.flatMap(({ address, ...vip }) =>
      source === undefined ? [] : [{ source, destination: address, ...vip, isTranslated: false }],
    ),
  );
}

function healthPackets(
  addresses: readonly TestAddresses[],
  ports: readonly number[],
): TestPacket[] {
  return addresses.flatMap(({ node }) =>
    node === undefined
      ? []
      : ports.map((port) => ({ source: outside(node), destination: node, port })),
  );
}

function outside(address: string): string {
  return address.includes(':') ? OUTSIDE.IPv6 : OUTSIDE.IPv4;
}

/** As `findingSteps`, at once. */
function findings(
  bases: readonly BaseChain[],
  packets: readonly TestPacket[],
  verdict: Ending['verdict'],
): Finding[] {
  return finish(findingSteps(bases, packets, verdict));
}

/** The chains in which a packet may end with the verdict; each base chain at most once. */
export function* findingSteps(
  bases: readonly BaseChain[],
  packets: readonly TestPacket[],
  verdict: Ending['verdict'],
): Steps<Finding[]> {
  const found: Finding[] = [];
  for (const base of bases) {
    const ofBase: Finding[] = [];
    for (const packet of packets.filter((each) => isOfFamily(base, each))) {
      const endings = yield* walkSteps(base, packet);
      const isCertain = endings.every((each) => each.verdict === verdict);
      const ending = endings.find(
        (each) => each.verdict === verdict && (isCertain || !PLUGIN_CHAINS.test(each.chain)),
      );
      if (ending === undefined) continue;
      const same = endings.filter((each) => each.verdict === verdict);
      const deciding = same.map((each) => each.chain);
      ofBase.push({ base, ending, isCertain, chains: deciding, packet });
    }
    const first = ofBase.find(({ isCertain }) => isCertain) ?? ofBase[0];
    if (first !== undefined) found.push(first);
  }
  return found;
}

/** Tables of family ip have only IPv4 packets, tables of ip6 only IPv6 packets. */
function isOfFamily({ table }: BaseChain, { source }: TestPacket): boolean {
  const family = table.split(' ')[0];
  return family === 'inet' || (family === 'ip6') === source.includes(':');
}

/** The base chain, and the chain that decides. */
export function placeOf({ table, chain, priority, policy }: BaseChain, ending: Ending): string {
  const inner = ending.chain === chain ? '' : `, chain ${ending.chain}`;
  const by = ending.by === 'policy' ? ' by its policy' : '';
  return `table ${table}, base chain ${chain} (priority ${priority}, policy ${policy})${inner}${by}`;
}

function dropResult(
  { base, ending, isCertain }: Finding,
  what: string,
  certain: typeof fail,
): CheckResult {
  const name = 'foreign drop rules';
  const place = placeOf(base, ending);
  const action = `accept these packets in table ${base.table}: Portwide cannot undo a drop of another table`;
  return isCertain
    ? certain(name, `${place} drops ${what}`, action)
    : warn(name, `${place} may drop ${what} (it depends on ${dependenceOf(ending)})`, action);
}

/** One result for a base chain: that about pods, if there is one. */
function distinct(results: readonly CheckResult[]): CheckResult[] {
  const placeIn = ({ seen }: CheckResult) => /^.*?\(priority/.exec(seen)?.[0] ?? seen;
  return results.filter(
    (result, index) => results.findIndex((each) => placeIn(each) === placeIn(result)) === index,
  );
}
