/** Settings of `portwide dns`. No file has them; those that the agent has too mean the same there. */
import { shown } from '../api/read-field.ts';
import { domainProblem } from '../dns/names.ts';
import { formatResolver, parseResolver } from '../dns/resolver-address.ts';
import type { ForwardTarget } from '../dns/resolver-list.ts';
import { AGENT_SETTINGS } from './agent-settings.ts';
import { commaSeparated, duration, each, integer, refuse, textual } from './kinds.ts';
import { addresses, bindAddress } from './network-kinds.ts';
import { NODE_SETTINGS } from './node-settings.ts';
import { setting, type ValuesOf } from './setting.ts';

const { kubeconfig, master, manifests, loggingFormat, v } = AGENT_SETTINGS;

/** Lower-case, without the final dot. */
const domain = textual<string>(
  '<domain>',
  (given) => {
    const name = given.toLowerCase().replace(/\.$/, '');
    const problem = domainProblem(name);
    return problem === undefined ? name : refuse(problem);
  },
  String,
);

/** Resolvers and files that name resolvers, or none at all. */
const forwardTargets = textual<readonly ForwardTarget[] | undefined>(
  '<resolvers|none>',
  (given) => {
    if (given === 'none') return undefined;
    if (given === '') return refuse('must be a file such as /etc/resolv.conf, resolvers, or none');
    return each(commaSeparated(given), (item) => {
      const resolver = parseResolver(item);
      if (resolver !== undefined) return { resolver };
      if (item.includes('/')) return { file: item };
      return refuse(
        `must be a path such as /etc/resolv.conf, ADDRESS, ADDRESS:PORT or [IPV6-ADDRESS]:PORT, not ${shown(item)}`,
      );
    });
  },
  (targets) =>
    targets === undefined
      ? 'none'
      : targets
          .map((target) => ('file' in target ? target.file : formatResolver(target.resolver)))
          .join(),
);

export const DNS_SETTINGS = {
  bindAddress: setting({
    group: 'dns',
    kind: addresses,
    default: ['0.0.0.0', '::'],
    text: 'IP addresses to answer on; 0.0.0.0 and :: are all of this host in their family',
    more: 'Each gets sockets of its own, so that answers leave from the address that was asked. Addresses of the host are followed as they come and go, but for link-local ones and those of `kube-ipvs0`.',
  }),
  port: setting({
    group: 'dns',
    kind: integer(1, 65535, '<port>'),
    default: 53,
    text: 'port to answer on, by UDP and TCP',
  }),
  clusterDomain: setting({
    group: 'dns',
    kind: domain,
    default: 'cluster.local',
    text: 'the domain that Services are in',
  }),
  ttl: setting({
    group: 'dns',
    kind: integer(0, 3600, '<seconds>'),
    default: 5,
    text: 'how many seconds answers may be kept',
    more: 'That there is no such name, at most 300.',
  }),
  forward: setting({
    group: 'dns',
    kind: forwardTargets,
    default: undefined,
    text: 'whom to ask about other domains: files such as /etc/resolv.conf, and resolvers as ADDRESS, ADDRESS:PORT or [IPV6-ADDRESS]:PORT, separated by commas; none: refuse them',
    more: 'In this order. Files are read again every 5 s. Whoever reaches the server can use these resolvers then.',
  }),
  cacheTtl: setting({
    group: 'dns',
    kind: integer(0, 3600, '<seconds>'),
    default: 30,
    text: 'how many seconds answers of the resolvers are kept at most; 0: not at all',
    more: 'And no longer than their records say. 30 is what kubeadm has CoreDNS do.',
  }),
  lameduck: setting({
    group: 'dns',
    kind: duration({ zero: true }),
    default: 5000,
    text: 'how long queries are answered after SIGTERM, with /readyz at 503',
    more: 'So that clients that still have this address get answers while Services and load balancers take it out. Then queries under way are answered, for at most 6 s. A second signal ends the process at once.',
  }),
  featureGates: setting({
    group: 'dns',
    kind: NODE_SETTINGS.featureGates.kind,
    default: NODE_SETTINGS.featureGates.default,
    shownDefault: 'AllPorts=true',
    text: 'accepted as the agent has it; names are the same with AllPorts on and off',
  }),
  kubeconfig,
  master,
  manifests: setting({
    group: 'node',
    kind: manifests.kind,
    default: undefined,
    text: 'read Services and EndpointSlices from this directory (its .yaml, .yml and .json files), not from a cluster',
  }),
  metricsBindAddress: setting({
    group: 'servers',
    kind: bindAddress(9153),
    default: { host: '127.0.0.1', port: 9153 },
    text: 'where /metrics, /healthz and /readyz are served; empty: nowhere',
  }),
  loggingFormat,
  v: setting({
    group: 'process',
    kind: v.kind,
    default: 0,
    text: 'log level: from 3 on, errors bear their stacks',
  }),
};

/** All that `portwide dns` may be told, with defaults. */
export type DnsOptions = ValuesOf<typeof DNS_SETTINGS>;
