/**
 * UDP and SCTP node ports on the loopback address. The proxy in `localhost/` serves TCP only, so packets to them are
 * rejected and counted (KEP-6032), in counters that bear the names of kube-proxy's.
 */
import type { IpFamily, Protocol } from '../api/objects.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NftCounter } from '../netlink/nftables/tables.ts';
import { portKey } from '../nft/keys.ts';
import { countPacket, goTo, inputInterfaceIs } from '../nft/rule.ts';
import { loopbackAddress } from '../services/node-port-addresses.ts';
import type { NodePortPlan } from '../traffic/plan.ts';
import { type NftChain, REJECT_CHAIN } from './chains.ts';
import type { MapElement } from './element.ts';

const UNPROXIED = ['UDP', 'SCTP'] as const satisfies readonly Protocol[];

/** The chains that `localhostReject` leads to. */
export function localhostChains(): NftChain[] {
  return UNPROXIED.map((protocol) => ({
    name: chainName(protocol),
    // Only on arrival, as the kernel refuses: a packet that is rejected on its way out is EPERM to its sender.
    rules: [[inputInterfaceIs('lo'), countPacket(counterName(protocol)), goTo(REJECT_CHAIN)]],
    jumpTargets: [],
    counter: counterName(protocol),
  }));
}

/**
 * What rejects packets to a node port on the loopback address; undefined for TCP. No VIP has this key, for none is a
 * loopback address.
 */
export function localhostRejectElement(
  family: IpFamily,
  { protocol, port }: NodePortPlan,
): MapElement | undefined {
  if (protocol === 'TCP') return undefined;
  return {
    map: 'port-fates',
    key: Buffer.concat([addressBytes(loopbackAddress(family)), portKey(protocol, port)]),
    data: { kind: 'goto', chain: chainName(protocol) },
  };
}

/** Packets rejected, by protocol, of the counters that are there. */
export function rejectedPackets(counters: readonly NftCounter[]): Map<Protocol, number> {
  const packets = new Map(counters.map((counter) => [counter.name, Number(counter.packets)]));
  return new Map(
    UNPROXIED.flatMap((protocol) => {
      const count = packets.get(counterName(protocol));
      return count === undefined ? [] : [[protocol, count] as const];
    }),
  );
}

function chainName(protocol: Protocol): string {
  return `reject-localhost-${protocol.toLowerCase()}`;
}

function counterName(protocol: Protocol): string {
  return `localhost-nodeport-rejected-${protocol.toLowerCase()}`;
}
