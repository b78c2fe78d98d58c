/** Settings of `portwide dns`, as flags only. Flags shared with `portwide run` have the same meaning. */
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

/** Returns the domain in lower case, without the final dot. */
const domain = parsedText('<domain>', (given) => {
  const name = given.toLowerCase().replace(/\.$/, '');
  const problem = domainProblem(name);
  return problem === undefined ? name : invalid(problem);
});

/** Upstream resolvers, and resolv.conf files that list them; undefined for `none`. */
const forwardTargets = encodedAsText<readonly ForwardTarget[] | undefined>(
  '<resolvers|none>',
  (given) => {
    if (given === 'none') return undefined;
    if (given === '')
      return invalid('must be resolver addresses, files such as /etc/resolv.conf, or none');
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
    help: 'IP addresses to listen on; 0.0.0.0 and :: are all IPv4 and all IPv6 addresses of this host',
    details:
      '0.0.0.0 and :: include addresses added later, except IPv6 link-local addresses and VIPs on `kube-ipvs0`.',
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
    help: 'TTL of answers, in seconds',
    details: 'At most 300 for negative answers.',
  }),
  forward: setting('dns', {
    type: forwardTargets,
    default: undefined,
    help: 'upstream resolvers for other domains: ADDRESS, ADDRESS:PORT, [IPV6-ADDRESS]:PORT, or files such as /etc/resolv.conf; none: answer REFUSED',
    details:
      'Tried in this order. Files are read again every 5 s. Every client of this server can use them.',
  }),
  cacheTtl: setting('dns', {
    type: wholeNumber(0, 3600, '<seconds>'),
    default: 30,
    help: 'maximum time to cache upstream answers, in seconds; 0: no cache',
    details: "The records' TTL is a further limit.",
  }),
  lameduck: setting('dns', {
    type: duration({ zero: true }),
    default: 5000,
    help: 'time after SIGTERM in which queries are still answered while /readyz returns 503',
    details:
      'Gives Services and load balancers time to remove this server. Then pending queries are answered for at most 6 s. A second signal ends the process immediately.',
  }),
  featureGates: setting('dns', {
    type: NODE_SETTINGS.featureGates.type,
    default: NODE_SETTINGS.featureGates.default,
    defaultText: 'AllPorts=true',
    help: 'accepted like `portwide run`; no effect on DNS names',
  }),
  kubeconfig,
  master,
  manifests: setting('node', {
    type: manifests.type,
    default: undefined,
    help: 'directory of manifests (.yaml, .yml, .json; not recursive) with Services and EndpointSlices to read instead of an API server',
  }),
  metricsBindAddress: setting('servers', {
    type: bindAddress(9153),
    default: { host: '127.0.0.1', port: 9153 },
    help: 'address and port that serve /metrics, /healthz and /readyz; empty: disabled',
  }),
  loggingFormat,
  v: setting('process', {
    type: v.type,
    default: 0,
    help: 'log verbosity; 3 and above: errors include stacks',
  }),
};

/** The options of `portwide dns`. `ttl` and `cacheTtl` are in seconds, `lameduck` is in milliseconds. */
export type DnsOptions = ValuesOf<typeof DNS_SETTINGS>;
