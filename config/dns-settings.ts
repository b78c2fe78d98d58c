/** Settings of `portwide dns`: flags only. Those that `portwide run` has too mean the same there. */
import { describeValue } from '../api/read-field.ts';
import { domainProblem } from '../dns/names.ts';
import { formatResolver, parseResolver } from '../dns/resolver-address.ts';
import type { ForwardTarget } from '../dns/resolver-list.ts';
import { AGENT_SETTINGS } from './agent-settings.ts';
import { bindAddress, ipAddresses } from './network-types.ts';
import { NODE_SETTINGS } from './node-settings.ts';
import { setting, type ValuesOf } from './setting.ts';
import {
  commaSeparated,
  duration,
  encodedAsText,
  invalid,
  parsedText,
  readItems,
  wholeNumber,
} from './value-types.ts';

const { kubeconfig, master, manifests, loggingFormat, v } = AGENT_SETTINGS;

/** Lower-case, without the final dot. */
const domain = parsedText('<domain>', (given) => {
  const name = given.toLowerCase().replace(/\.$/, '');
  const problem = domainProblem(name);
  return problem === undefined ? name : invalid(problem);
});

/** Resolvers and files that list resolvers; undefined for `none`. */
const forwardTargets = encodedAsText<readonly ForwardTarget[] | undefined>(
  '<resolvers|none>',
  (given) => {
    if (given === 'none') return undefined;
    if (given === '') return invalid('must be a file such as /etc/resolv.conf, resolvers, or none');
    return readItems(commaSeparated(given), (item) => {
      const resolver = parseResolver(item);
      if (resolver !== undefined) return { resolver };
      if (item.includes('/')) return { file: item };
      return invalid(
        `must be a path such as /etc/resolv.conf, ADDRESS, ADDRESS:PORT or [IPV6-ADDRESS]:PORT, not ${describeValue(item)}`,
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
  bindAddress: setting('dns', {
    type: ipAddresses,
    default: ['0.0.0.0', '::'],
    help: 'IP addresses to listen on; 0.0.0.0 and :: mean all IPv4 and all IPv6 addresses of this host',
    details:
      'Each address has its own sockets, so that an answer has the address as its source that the query was sent to. With 0.0.0.0 and ::, addresses that the host gets later are served too. Link-local addresses and those of `kube-ipvs0` are not.',
  }),
  port: setting('dns', {
    type: wholeNumber(1, 65535, '<port>'),
    default: 53,
    help: 'UDP and TCP port to listen on',
  }),
  clusterDomain: setting('dns', {
    type: domain,
    default: 'cluster.local',
    help: 'DNS domain of the cluster',
  }),
  ttl: setting('dns', {
    type: wholeNumber(0, 3600, '<seconds>'),
    default: 5,
    help: 'TTL of answers in seconds',
    details: 'Negative answers have at most 300.',
  }),
  forward: setting('dns', {
    type: forwardTargets,
    default: undefined,
    help: 'resolvers for other domains, separated by commas: ADDRESS, ADDRESS:PORT, [IPV6-ADDRESS]:PORT or files such as /etc/resolv.conf; none: refuse queries for other domains',
    details:
      'They are asked in this order. Files are read again every 5 s. Every client of this server can use these resolvers.',
  }),
  cacheTtl: setting('dns', {
    type: wholeNumber(0, 3600, '<seconds>'),
    default: 30,
    help: 'maximum time in seconds for which answers of the resolvers are cached; 0: no cache',
    details: 'The TTL of the records is a further limit. kubeadm configures CoreDNS with 30.',
  }),
  lameduck: setting('dns', {
    type: duration({ zero: true }),
    default: 5000,
    help: 'time after SIGTERM in which queries are still answered while /readyz is 503',
    details:
      'In this time Services and load balancers remove the address of this server, and clients that still use it get answers. Afterwards pending queries are answered, for at most 6 s. A second signal ends the process at once.',
  }),
  featureGates: setting('dns', {
    type: NODE_SETTINGS.featureGates.type,
    default: NODE_SETTINGS.featureGates.default,
    defaultText: 'AllPorts=true',
    help: 'accepted as by `portwide run`; DNS names do not depend on AllPorts',
  }),
  kubeconfig,
  master,
  manifests: setting('node', {
    type: manifests.type,
    default: undefined,
    help: 'read Services and EndpointSlices from this directory (its .yaml, .yml and .json files), not from a cluster',
  }),
  metricsBindAddress: setting('servers', {
    type: bindAddress(9153),
    default: { host: '127.0.0.1', port: 9153 },
    help: 'address and port of /metrics, /healthz and /readyz; empty: not served',
  }),
  loggingFormat,
  v: setting('process', {
    type: v.type,
    default: 0,
    help: 'log verbosity; from 3 on, errors have their stacks',
  }),
};

/** All options of `portwide dns`, with defaults. */
export type DnsOptions = ValuesOf<typeof DNS_SETTINGS>;
