/** Settings of network policy. */
import { boolean, each, integer, list, optional } from './kinds.ts';
import { address } from './network-kinds.ts';
import { setting } from './setting.ts';

const group = 'policy';

export const POLICY_SETTINGS = {
  networkPolicy: setting({
    group,
    field: 'portwide.networkPolicy.enforce',
    kind: boolean,
    default: false,
    winsOverFile: true,
    text: 'enforce network policies for the pods of this node',
    more: 'In every mode; it takes nft and Linux as mode nftables does. See [policy.md](policy.md). Where something else enforces policies already, leave it off.',
  }),
  fqdnResolvers: setting({
    group,
    field: 'portwide.networkPolicy.fqdnResolvers',
    kind: list<readonly string[]>(
      '<addresses>',
      (items) => each(items, (item) => address.fromFile(item, () => {})),
      (value) => value,
    ),
    default: [],
    shownDefault: 'cluster IPs of Service kube-system/kube-dns',
    winsOverFile: true,
    text: 'DNS servers of the pods, from whose answers the addresses of domain names are learned',
    more: 'As pods address them: what is in their `resolv.conf`. Answers of others count for nothing.',
  }),
  policyLogGroup: setting({
    group,
    field: 'portwide.networkPolicy.logGroup',
    kind: optional(integer(0, 65535, '<group>')),
    default: undefined,
    winsOverFile: true,
    shownDefault: 'none',
    text: 'group of nflog that hears of each packet that policies deny',
  }),
};
