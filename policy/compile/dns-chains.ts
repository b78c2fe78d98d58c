/**
 * Chains that send the DNS packets of some pods through an NFQUEUE: queries to resolvers, and answers.
 *
 *   prerouting ─┬─► dns-tracked ───┬─ query ──────────────────────────────► dns-queue
 *               └─► dns-untracked ─┴─ answer ─► dns-answers: way back? ─────┤
 *   output ────── answers of a resolver on the node itself ─────────────────┘
 *
 * - `dns-resolvers` holds the resolvers while the agent reads the queue. Its elements expire in the kernel, so a stopped
 *   agent delays DNS for at most their timeout, whatever its threads do.
 * - `dns-bypass` holds the pods of this node that no policy with domain names selects. Their packets, and packets of the node's
 *   own processes, never wait in the queue. Packets of unknown addresses do: a new pod resolves names before its address
 *   reaches the agent, and its answers would be missed.
 * - An answer must arrive on the interface of the route back to its sender. Otherwise any pod, or a host outside, could
 *   forge it: IPv6 has no `rp_filter`, and overlays need the loose one. Other answers pass, are counted, and teach nothing.
 *   Answers that the node itself sends have no input interface.
 * - The chains come after DNAT of queries and the end of masquerade of answers (priority dstnat), so both have the address
 *   of the pod. The source of an answer is still the resolver's endpoint. A VIP of IPVS is not translated yet.
 * - Untracked connections, as NodeLocal DNSCache configures them, are matched by address and port.
 */
import type { IpFamily, Protocol } from '../../api/objects.ts';
import { PRIORITY } from '../../netlink/nftables/hooks.ts';
import {
  countPacket,
  goTo,
  IS_NOT_FROM_NODE,
  IS_NOT_TO_NODE,
  IS_UNTRACKED,
  type KeyField,
  protocolIs,
  type RuleParts,
  rulePartsFor,
} from '../../nft/rule.ts';
import { IS_ON_WAY_BACK, isDirection, portIs, sendToQueue } from './expressions.ts';

/** NFQUEUE number. */
export const DNS_QUEUE = 2610;
/** The chain with the only rule that needs NFQUEUE. */
export const DNS_QUEUE_CHAIN = 'dns-queue';
/** Counts answers that did not arrive on the interface of the way back. */
export const FORGED_ANSWERS_COUNTER = 'forged-dns-answers';

const DNS_PORT = 53;
const DNS_PROTOCOLS: readonly Protocol[] = ['UDP', 'TCP'];

/** Rules by chain. */
export interface DnsChains {
  /** Rules of the base chains, which run after DNAT. */
  readonly prerouting: readonly RuleParts[];
  readonly output: readonly RuleParts[];
  readonly others: Readonly<Record<string, readonly RuleParts[]>>;
}

export const DNS_PRIORITY = PRIORITY.dstnat + 10;

/** @param hasQueue false: no packet is queued, because the kernel has no NFQUEUE. */
export function dnsChains(family: IpFamily, hasQueue: boolean): DnsChains {
  const { source, destination, sourcePort, port, originalVip, originalPort, inSet, notInSet } =
    rulePartsFor(family);
  const eachProtocol = (...rule: RuleParts): RuleParts[] =>
    DNS_PROTOCOLS.map((protocol) => [protocolIs(protocol), ...rule]);
  const isResolver = (field: KeyField) => inSet([field], 'dns-resolvers');
  const fromClient = [notInSet([source], 'dns-bypass'), IS_NOT_FROM_NODE];
  const toClient = [notInSet([destination], 'dns-bypass'), IS_NOT_TO_NODE];
  const tracked = [portIs(originalPort, DNS_PORT), isResolver(originalVip)];
  const untrackedQuery = [portIs(port, DNS_PORT), isResolver(destination), ...fromClient];
  const untrackedAnswer = [portIs(sourcePort, DNS_PORT), isResolver(source), ...toClient];
  const queue = goTo(DNS_QUEUE_CHAIN);
  return {
    prerouting: [
      [IS_UNTRACKED, goTo('dns-untracked')],
      ...eachProtocol(...tracked, goTo('dns-tracked')),
    ],
    output: [
      ...eachProtocol(IS_UNTRACKED, ...untrackedAnswer, queue),
      ...eachProtocol(...tracked, isDirection('reply'), ...toClient, queue),
    ],
    others: {
      'dns-tracked': [
        [isDirection('original'), ...fromClient, queue],
        [isDirection('reply'), ...toClient, goTo('dns-answers')],
      ],
      'dns-untracked': [
        ...eachProtocol(...untrackedQuery, queue),
        ...eachProtocol(...untrackedAnswer, goTo('dns-answers')),
      ],
      'dns-answers': [[IS_ON_WAY_BACK, queue], [countPacket(FORGED_ANSWERS_COUNTER)]],
      [DNS_QUEUE_CHAIN]: hasQueue ? [[sendToQueue(DNS_QUEUE)]] : [],
    },
  };
}
