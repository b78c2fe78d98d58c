/**
 * The flowtable of table `portwide` (`--nftables-flowtable`): forwarded TCP and UDP connections of Services bypass all
 * hooks but ingress, once they are established and have some packets. The path of a packet:
 *
 *   ingress of an interface in the flowtable ─ connection in it? ─► NAT, TTL, route of the connection, output
 *                                            └─ no, fragment, larger than the MTU, FIN, RST ─► the hooks as ever
 *   filter forward, after all filters ─ established, translated, both interfaces in the flowtable ─► add it
 *
 * The kernel ends the bypass of a connection when its route changes, an interface goes down, its conntrack entry is
 * deleted, or it is idle for 30 s. The next packet then takes the hooks.
 *
 * Network policy evaluates new connections only, so it sees all packets that it decides about. DNS connections stay in
 * the hooks, because the agent reads all answers for policies with domain names.
 */
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { addressBytes } from '../netlink/core/address.ts';
import { baseAt, PRIORITY } from '../netlink/nftables/hooks.ts';
import { type Declaration, setFields } from '../nft/declaration.ts';
import {
  addToFlowtable,
  hasMorePacketsThan,
  INPUT_INTERFACE,
  IS_ESTABLISHED,
  OUTPUT_INTERFACE,
  originalPortIsNot,
} from '../nft/flowtable-rule.ts';
import { portKey } from '../nft/keys.ts';
import { goTo, HAS_DNAT, protocolIs, type RuleParts, rulePartsFor } from '../nft/rule.ts';
import type { RuleTable } from '../nft/table.ts';
import type { TrafficPlan } from '../traffic/plan.ts';
import type { NftChain } from './chains.ts';
import type { MapElement } from './element.ts';

/** Name of the flowtable. */
export const FLOWTABLE = 'services';
/** The set with the names of the interfaces in the flowtable. */
const FLOWTABLE_DEVICES = 'flowtable-devices';
/**
 * The set with the name of each interface twice, as input and output. A rule cannot compare the two interfaces of a packet.
 */
export const FLOWTABLE_HAIRPINS = 'flowtable-hairpins';
/** The chain whose rules add connections. */
const OFFLOAD_CHAIN = 'offload-connection';

/** Sets of the flowtable that the agent fills apart from Services. */
export const FLOWTABLE_SETS: readonly string[] = [FLOWTABLE_HAIRPINS, FLOWTABLE_DEVICES];

/** Packets of a connection, in both directions, before it bypasses the hooks: short connections never do. */
const PACKETS_IN_HOOKS = 20;
const DNS_PORT = 53;
/** After the filters of most other programs, so that they can drop the packets of a connection before. */
const FORWARD_PRIORITY = 500;

/** The flowtable and its sets. The kernel keeps the interfaces of an existing flowtable. */
export function flowtableDeclarations(family: IpFamily): Declaration[] {
  const { inputInterface, outputInterface } = setFields(family);
  return [
    { kind: 'flowtable', name: FLOWTABLE, priority: PRIORITY.filter },
    { kind: 'set', name: FLOWTABLE_DEVICES, key: [inputInterface] },
    { kind: 'set', name: FLOWTABLE_HAIRPINS, key: [inputInterface, outputInterface] },
  ];
}

/** The chains that add connections to the flowtable. */
export function flowtableChains(family: IpFamily): NftChain[] {
  const { inSet, notInSet, originalVip, protocol, originalPort } = rulePartsFor(family);
  const conditions: RuleParts = [
    IS_ESTABLISHED,
    HAS_DNAT,
    inSet([INPUT_INTERFACE], FLOWTABLE_DEVICES),
    inSet([OUTPUT_INTERFACE], FLOWTABLE_DEVICES),
    notInSet([INPUT_INTERFACE, OUTPUT_INTERFACE], FLOWTABLE_HAIRPINS),
    hasMorePacketsThan(PACKETS_IN_HOOKS),
  ];
  const add = addToFlowtable(FLOWTABLE);
  const adds: RuleParts[] = PROTOCOLS.filter((each) => each !== 'SCTP').flatMap((each) => [
    [protocolIs(each), originalPortIsNot(DNS_PORT), inSet([originalVip], 'flowtable-vips'), add],
    [
      protocolIs(each),
      inSet([originalVip], 'node-port-ips'),
      inSet([protocol, originalPort], 'flowtable-node-ports'),
      add,
    ],
  ]);
  const offload: NftChain = {
    name: OFFLOAD_CHAIN,
    rules: adds,
    jumpTargets: [],
    maps: ['flowtable-vips', 'flowtable-node-ports'],
    usesFlowtable: true,
  };
  const forward: NftChain = {
    name: 'filter-forward-flowtable',
    base: baseAt('filter', 'forward', FORWARD_PRIORITY),
    rules: [[...conditions, goTo(OFFLOAD_CHAIN)]],
    jumpTargets: [],
    usesFlowtable: true,
  };
  return [offload, forward];
}

/** The elements with the VIPs and the node port whose connections may be added. */
export function flowtableElements({ vips, nodePort }: TrafficPlan): MapElement[] {
  const elements: MapElement[] = vips.map(({ vip }) => ({
    map: 'flowtable-vips',
    key: addressBytes(vip),
  }));
  if (nodePort === undefined || nodePort.protocol === 'SCTP') return elements;
  const { protocol, port } = nodePort;
  return [...elements, { map: 'flowtable-node-ports', key: portKey(protocol, port) }];
}

/** Deletes the flowtable with its flows, and the rules that refer to it. A full sync creates it again. */
export async function deleteFlowtable(table: RuleTable): Promise<void> {
  const existing = (await table.flowtables())?.some(({ name }) => name === FLOWTABLE);
  if (existing !== true) return;
  await table.transact([
    { action: 'fill', chain: { name: OFFLOAD_CHAIN, rules: [] } },
    { action: 'delete-flowtable', flowtable: FLOWTABLE },
  ]);
}
